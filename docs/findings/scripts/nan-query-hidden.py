import torch
q, k, v = torch.full((1, 1, 2, 8), torch.nan), torch.randn(1, 1, 3, 8), torch.randn(1, 1, 3, 8)
out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
print("expected NaN")
print("got", out[0, 0, 0, 0].item())
print("DEVIATES" if (out == 0).all() else "fixed")
