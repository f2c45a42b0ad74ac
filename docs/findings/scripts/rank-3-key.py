import torch
q, k, v = torch.randn(2, 4, 5, 8), torch.randn(4, 7, 8), torch.randn(4, 7, 8)
try:
    got = tuple(torch.nn.functional.scaled_dot_product_attention(q, k, v).shape)
except RuntimeError as error:
    got = error
print("expected an error: keys and values without a batch axis")
print("got", repr(got))
print("DEVIATES" if got == (2, 4, 5, 8) else "fixed")
