import os
os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language as tl
@triton.jit
def multiply(x, y, z):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(z + at, tl.dot(tl.load(x + at), tl.load(y + at)))
x, z = torch.eye(16).bfloat16(), torch.empty(16, 16)
multiply[1,](x, x, z)
print("expected", 1.0)
print("got", z[0, 0].item())
print("DEVIATES" if z[0, 0] == 0x3F80**2 else "fixed")  # the bits of 1 are 0x3F80
