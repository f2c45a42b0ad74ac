import torch
weights = torch.ones(3, 21, 37, dtype=torch.bfloat16)
weights[:, 4] = torch.nan
out = weights @ torch.ones(3, 37, 6, dtype=torch.bfloat16)
rows = out.isnan().any(-1)[0].nonzero().flatten()
flags = open("/proc/cpuinfo").read().split()
print("expected NaN in row 4 alone")
print("got NaN in rows", rows.tolist())
print("not applicable here" if "amx_bf16" not in flags else "DEVIATES" if rows.tolist() == [3, 4] else "fixed")
