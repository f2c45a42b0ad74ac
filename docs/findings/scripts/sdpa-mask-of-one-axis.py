import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
attention = torch.nn.functional.scaled_dot_product_attention
q, k = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 5, 8)
mask = torch.tensor([True, True, False, True, False])
with sdpa_kernel(SDPBackend.MATH):
    same = torch.equal(attention(q, k, k, mask), attention(q, k, k, mask[None]))
try:
    got = attention(q, k, k, mask).shape
except IndexError as error:
    got = error
print("expected an answer, as that of the math kernel")
print("got", repr(got))
print("DEVIATES" if same and "Dimension out of range" in str(got) else "fixed")
