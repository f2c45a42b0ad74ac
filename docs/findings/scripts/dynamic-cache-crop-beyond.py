import torch
from transformers import DynamicCache
cache, key = DynamicCache(), torch.ones(1, 1, 5, 1)
cache.update(key, key, 0)
try:
    cache.crop(-7)
    got = cache.get_seq_length()
except ValueError as error:
    got = error
print("expected an error: 7 of 5 tokens")
print("got", repr(got))
print("DEVIATES" if isinstance(got, int) and got < 5 else "fixed")
