import torch
from transformers import MistralConfig, MistralModel, StaticCache
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = MistralModel(MistralConfig(vocab_size=9, num_key_value_heads=1, sliding_window=6, **sizes)).eval()
ids = torch.arange(9)[None]
with torch.no_grad():
    right = model(ids, use_cache=False)[0]
    def error(capacity):
        cache = StaticCache(model.config, max_cache_len=capacity)
        rows = [model(ids[:, i : i + 1], past_key_values=cache)[0] for i in range(9)]
        return float((torch.cat(rows, 1) - right).abs().max())
    errors = error(6), error(4)
print("expected zero, next to, and an error beyond the capacity")
print("got", errors)
print("DEVIATES" if errors[0] < 1e-5 and errors[1] > 0.01 else "fixed")
