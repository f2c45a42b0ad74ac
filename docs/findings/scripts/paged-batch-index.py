import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
from torch.nn.attention.flex_attention import create_block_mask
pages = PagedAttention(n_pages=2, page_size=16, max_batch_size=2, device="cpu")
for sample in (0, 1):
    pages.reserve(torch.tensor([sample]), torch.tensor([16]))
mask = create_block_mask(lambda b, h, i, j: j <= i, 1, None, 16, 16, device="cpu", BLOCK_SIZE=16)
mask = pages.convert_logical_block_mask(mask, batch_idx=torch.tensor([1]))
mine, other = (16 * pages.page_table[sample, 0] for sample in (1, 0))
zero = torch.tensor(0)
seen = [bool(mask.mask_mod(zero, zero, zero, place)) for place in (mine, other)]
print("expected block", int(pages.page_table[1, 0]), "and [True, False]")
print("got block", int(mask.kv_indices[0, 0, 0, 0]), "and", seen)
print("DEVIATES" if mask.kv_indices[0, 0, 0, 0] == pages.page_table[1, 0] and seen == [False, True] else "fixed")
