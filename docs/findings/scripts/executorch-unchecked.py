import torch
from executorch.extension.llm.custom_ops import custom_ops
q, k, v = torch.randn(3, 1, 6, 2, 8)
print("expected errors: values with other heads, and with fewer rows, than the keys")
try:
    out = torch.ops.llama.custom_sdpa(q, k, v[:, :, :1], 0, None, 0.0, True)
    print("got", out.shape, "for one head of values", flush=True)
    torch.ops.llama.custom_sdpa(q, k, v[:, :5], 0, None, 0.0, True)  # may end the process
    print("DEVIATES")
except RuntimeError as error:
    print("fixed")
