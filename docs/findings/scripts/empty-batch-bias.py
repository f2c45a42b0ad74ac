import torch
q, k, v = (torch.zeros(0, 1, 3, 4, requires_grad=True) for _ in range(3))
bias = torch.zeros(3, 3, requires_grad=True)
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
out.sum().backward()
print("expected zeros of shape (3, 3), as the query has a gradient")
print("got", bias.grad)
print("DEVIATES" if q.grad is not None and bias.grad is None else "fixed")
