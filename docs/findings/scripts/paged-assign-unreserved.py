import torch
from torch.nn.attention.experimental._paged_attention import PagedAttention
pages = PagedAttention(n_pages=2, page_size=2, max_batch_size=2, device="cpu")
key, value = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8)
first, second = torch.tensor([0]), torch.tensor([1])
pages.reserve(first, torch.tensor([4]))  # both pages are the first sample's
pages.assign(first, torch.arange(4)[None], *torch.ones(2, 1, 1, 4, 8), key, value)
try:
    pages.assign(second, torch.tensor([[0]]), *torch.full((2, 1, 1, 1, 8), 9.0), key, value)
    got = key[0, 0, :, 0].tolist()
except Exception as error:
    got = error
print("expected an error, or keys of the first sample that stay 1")
print("got", repr(got))
print("DEVIATES" if (key == 9).any() else "fixed")
