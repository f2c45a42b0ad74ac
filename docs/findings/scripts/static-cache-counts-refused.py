import torch
from transformers import LlamaConfig, StaticCache
cache = StaticCache(config=LlamaConfig(num_hidden_layers=1), max_cache_len=6)
four, three = torch.ones(1, 1, 4, 1), torch.ones(1, 1, 3, 1)
cache.update(four, four, 0)
try:
    cache.update(three, three, 0)
except (IndexError, RuntimeError):
    pass  # 7 tokens do not fit
got = int(cache.get_seq_length())
print("expected a length of 4, since three tokens were refused")
print("got", repr(got))
print("DEVIATES" if got == 7 else "fixed")
