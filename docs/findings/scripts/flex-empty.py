import torch
from torch.nn.attention.flex_attention import create_block_mask
allowed = torch.ones(0, 2, 3, 5, dtype=torch.bool)
try:
    got = create_block_mask(lambda b, h, i, j: allowed[b, h, i, j], 0, 2, 3, 5, device="cpu").shape
except IndexError as error:
    got = error
print("expected a block mask of shape (0, 2, 3, 5)")
print("got", repr(got))
print("DEVIATES" if isinstance(got, IndexError) else "fixed")
