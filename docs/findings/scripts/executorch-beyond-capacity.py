import torch
from executorch.extension.llm.custom_ops import custom_ops
key, value = torch.zeros(1, 4, 2, 8), torch.zeros(1, 4, 2, 8)
x = torch.ones(1, 1, 2, 8)
try:
    got = torch.ops.llama.sdpa_with_kv_cache(x, x, x, key, value, 4, 1, None, 0.0, True)
except RuntimeError as error:
    got = error
print("expected an error: token 4 of a cache with 4 slots")
print("got", "an error" if isinstance(got, RuntimeError) else f"an answer, and the token was stored: {bool(key.any())}")
print("DEVIATES" if not isinstance(got, RuntimeError) and not key.any() and not torch.equal(got, x) else "fixed")
