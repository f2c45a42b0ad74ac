import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
pages = PagedAttention(n_pages=2, page_size=16, max_batch_size=2, device="cpu")
def page_of(sample):
    pages.reserve(torch.tensor([sample]), torch.tensor([16]))
    return int(pages.page_table[sample, 0])
freed = page_of(0)
pages.erase(torch.tensor([0]))
taken = page_of(1)  # sample 1 takes the page
page_of(0)  # and sample 0 another one
zero = torch.tensor(0)
seen = bool(pages.get_mask_mod(None)(zero, zero, zero, torch.tensor(16 * freed)))
print("expected False: sample 0 sees the page of sample 1")
print("got", seen)
print("DEVIATES" if taken == freed and seen else "fixed")
