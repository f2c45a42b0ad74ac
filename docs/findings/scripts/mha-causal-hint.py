import torch
torch.manual_seed(0)
layer, x = torch.nn.MultiheadAttention(12, 4, batch_first=True), torch.randn(2, 7, 12)
mask = torch.rand(7, 7) < 0.4  # True masks
mask[:, 0] = False
try:
    outs = [layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=n)[0] for n in (False, True)]
    got = (outs[0] - outs[1]).abs().max().item()
except RuntimeError as error:
    got = error
print("expected an error, or a difference of 0 between need_weights=False and True")
print("got", repr(got))
print("DEVIATES" if isinstance(got, float) and got > 0.01 else "fixed")
