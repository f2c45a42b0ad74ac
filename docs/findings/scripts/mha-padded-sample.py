import torch
layer, x = torch.nn.MultiheadAttention(12, 4, batch_first=True).eval(), torch.randn(2, 7, 12)
padding = torch.tensor([[False] * 7, [True] * 7])
with_gradients = layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]
with torch.no_grad():
    without = layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]
print("expected equal answers for a padded sample, with gradients and without")
print("got", with_gradients[1, 0, 0].item(), "with gradients,", without[1, 0, 0].item(), "without")
print("DEVIATES" if with_gradients.isfinite().all() and without[1].isnan().all() else "fixed")
