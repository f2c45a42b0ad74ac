import torch
from transformers import DynamicCache, MistralConfig
from transformers.masking_utils import create_sliding_window_causal_mask
config = MistralConfig(num_hidden_layers=1, sliding_window=1)
config._attn_implementation = "eager"
cache, key, sizes = DynamicCache(config=config), torch.ones(1, 8, 1, 4), []
for _ in range(3):
    mask = create_sliding_window_causal_mask(config, torch.zeros(1, 1, 1), None, cache)
    sizes.append((mask.shape[-1], cache.update(key, key, 0)[0].shape[-2]))
print("expected as many columns of the mask as keys at each step")
print("got", sizes)
print("DEVIATES" if sizes == [(1, 1), (1, 2), (1, 3)] else "fixed")
