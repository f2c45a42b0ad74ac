import torch
torch.manual_seed(0)
q, k, v = x = 4 * torch.randn(3, 5, 4, 8, dtype=torch.bfloat16)  # tokens, heads, size
attention = torch.nn.functional.scaled_dot_product_attention
jagged = [torch.nested.nested_tensor_from_jagged(t, torch.tensor([0, 5])).transpose(1, 2) for t in x]
nested = attention(*jagged).transpose(1, 2).values().transpose(0, 1)
q, k, v = (t.transpose(0, 1) for t in x)
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
    math = attention(q[None], k[None], v[None])[0]
steps = (q * 8**-0.25 @ (k * 8**-0.25).mT).softmax(-1) @ v
exact = attention(*(t[None].double() for t in (q, k, v)))[0]
errors = [float(abs(out - exact).max()) for out in (nested, math)]
print("expected an error as that of the math kernel,", errors[1])
print("got", errors[0])
print("DEVIATES" if torch.equal(nested, steps) and errors[0] > 2 * errors[1] else "fixed")
