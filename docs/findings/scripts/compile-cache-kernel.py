import os, tempfile
os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
attend = torch.nn.functional.scaled_dot_product_attention
torch.manual_seed(0)
q, k, v = torch.randn(3, 2, 4, 11, 6).bfloat16()
def compiled():
    torch._dynamo.reset()
    return torch.compile(lambda q, k, v: attend(q, k, v), fullgraph=True)
with sdpa_kernel(SDPBackend.MATH):
    want = attend(q, k, v)
fused = compiled()(q, k, v)
with sdpa_kernel(SDPBackend.MATH):
    got = compiled()(q, k, v)
print("expected the answer of the math kernel, which the second compilation was told to use")
print("got", "that of the math kernel" if torch.equal(got, want) else "the fused kernel of the first compilation")
print("DEVIATES" if torch.equal(got, fused) and not torch.equal(got, want) else "fixed")
