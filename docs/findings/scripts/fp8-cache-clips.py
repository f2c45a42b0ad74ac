import torch
from transformers import LlamaConfig, QuantizedCache
cache = QuantizedCache(backend="fp8", config=LlamaConfig(num_hidden_layers=1))
prompt, token = torch.ones(1, 1, 4, 8), torch.full((1, 1, 1, 8), 5.0)
cache.update(prompt, prompt, 0)
keys, values = cache.update(token, token, 0)
got = keys[0, 0, -1, 0].item(), values[0, 0, -1, 0].item()
print("expected", (5.0, 5.0))
print("got", repr(got))
print("DEVIATES" if got[1] == 1.0 else "fixed")
