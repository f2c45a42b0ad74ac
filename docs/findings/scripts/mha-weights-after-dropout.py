import torch
layer, x = torch.nn.MultiheadAttention(12, 4, dropout=0.5, batch_first=True), torch.randn(2, 7, 12)
sums = layer(x, x, x)[1].sum(-1)
print("expected weights that sum to 1")
print("got", sums[0, :3].tolist())
print("DEVIATES" if (sums - 1).abs().max() > 0.05 else "fixed")
