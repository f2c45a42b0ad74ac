import torch
torch.manual_seed(0)
x, mask = torch.randn(2, 5, 8), torch.ones(5, 5, dtype=torch.bool).triu(1)
errors, right = [], True
for appended in ("add_bias_kv", "add_zero_attn"):
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True, **{appended: True})
    plain = layer(x, x, x, attn_mask=mask, need_weights=False)[0].detach()
    weights, none = (layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=n)[0].detach() for n in (True, False))
    right &= torch.allclose(weights, plain, atol=1e-6)
    errors.append((none - plain).abs().max().item())
print("expected is_causal changes nothing together with its own mask, differences of 0")
print("got", errors)
print("DEVIATES" if right and min(errors) > 0.01 else "fixed")
