import torch
torch.manual_seed(0)
x = (torch.randn(96, 64) * 2 + 3).bfloat16()
w = x.double()
want = (w - w.mean(0)) / torch.sqrt(w.var(0, unbiased=False) + 1e-5)
narrow = torch.nn.BatchNorm1d(64, affine=False, dtype=torch.bfloat16).train()(x)
wide = torch.nn.BatchNorm1d(64, affine=False).train()(x)
errors = [(out - want).abs().max().item() for out in (narrow, wide)]
print("expected an error as with float32 statistics,", errors[1])
print("got", errors[0])
print("DEVIATES" if errors[0] > 2 * errors[1] else "fixed")
