import torch
attention = torch.nn.functional.scaled_dot_product_attention
x = torch.ones(1, 1, 2, 8)
first = [attention(x, x, x, is_causal=True, scale=scale)[0, 0, 0, 0].item() for scale in (-0.5, 0.0)]
q, k, v = torch.randn(3, 1, 1, 128, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
mask = torch.ones(128, 128, dtype=torch.bool).tril()
out = attention(q, k, v, is_causal=True, scale=-0.2)
error = (out - attention(q, k, v, attn_mask=mask, scale=-0.2)).abs().max().item()
print("expected first rows of 1.0 for the scales -0.5 and 0, and an error of at most 0.02 for -0.2")
print("got", first, "and", error)
print("DEVIATES" if first[0] != first[0] and first[1] != first[1] and out.isfinite().all() and error > 0.5 else "fixed")
