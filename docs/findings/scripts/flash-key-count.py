import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
q, k, v = torch.randn(1, 2, 5, 8), torch.randn(1, 2, 7, 8), torch.randn(1, 2, 6, 8)
attention = torch.nn.functional.scaled_dot_product_attention
with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    same = attention(q, k[:, :, :6], v)
    try:
        got = attention(q, k, v)
    except RuntimeError as error:
        got = error
print("expected an error: 7 keys and 6 values")
print("got", "an answer to 6 keys" if torch.is_tensor(got) else got)
print("DEVIATES" if torch.is_tensor(got) and torch.equal(got, same) else "fixed")
