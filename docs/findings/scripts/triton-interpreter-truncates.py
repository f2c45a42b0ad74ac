import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
@triton.jit
def convert(x, y):
    tl.store(y, tl.load(x).to(tl.bfloat16))
x, y = torch.tensor([1 + 2**-8 + 2**-9]), torch.empty(1).bfloat16()
convert[1,](x, y)
print("expected", x.bfloat16().item())
print("got", y.item())
print("DEVIATES" if y == 1 and x.bfloat16() > 1 else "fixed")
