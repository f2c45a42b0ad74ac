import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
@triton.jit
def compute(x, y, added, less):
    a, b = tl.load(x), tl.load(y)
    tl.store(added, a + b)
    tl.store(less, (a < b).to(tl.int32))
def computed(a, b):
    x, y = (torch.tensor([number]).bfloat16() for number in (a, b))
    added, less = torch.empty(1).bfloat16(), torch.empty(1, dtype=torch.int32)
    compute[1,](x, y, added, less)
    return added.item(), less.item()
got = computed(2.5, 2.0), computed(-5.0, -2.0)
print("expected", ((4.5, 0), (-7.0, 1)))
print("got", repr(got))
print("DEVIATES" if got[0][0] < 0 and not got[1][1] else "fixed")
