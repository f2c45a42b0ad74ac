import torch
from torch.nn.attention.flex_attention import AuxRequest, flex_attention
x = torch.zeros(0, 1, 1, 8)
_, more = flex_attention(x, x, x, return_aux=AuxRequest(lse=True))
print("expected an array of shape (0, 1, 1)")
print("got", more.lse)
print("DEVIATES" if more.lse is None else "fixed")
