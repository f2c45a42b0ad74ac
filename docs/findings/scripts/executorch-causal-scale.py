import torch
from executorch.extension.llm.custom_ops import custom_ops
q, k, v = torch.randn(3, 1, 6, 2, 8)
mask = torch.full((6, 6), float("-inf")).triu(1)
flag = [torch.ops.llama.custom_sdpa(q, k, v, 0, None, 0.0, True, scale) for scale in (0.0, -0.3)]
masked = [torch.ops.llama.custom_sdpa(q, k, v, 0, mask, 0.0, False, scale) for scale in (0.0, -0.3)]
print("expected first rows", [out[0, 0, 0, 0].item() for out in masked])
print("got first rows", [out[0, 0, 0, 0].item() for out in flag])
print("DEVIATES" if all(f.isnan().any() and m.isfinite().all() for f, m in zip(flag, masked)) else "fixed")
