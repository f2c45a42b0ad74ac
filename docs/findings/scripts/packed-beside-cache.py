import torch
from transformers import LlamaConfig, LlamaModel
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
model = LlamaModel(LlamaConfig(vocab_size=9, **sizes)).eval()
ids, positions = torch.arange(8)[None], torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3]])
with torch.no_grad():
    alone = model(ids[:, 4:], use_cache=False)[0]
    def error(**more):
        return float((model(ids, position_ids=positions, **more)[0][:, 4:] - alone).abs().max())
    ones = torch.ones_like(ids)
    errors = [error(use_cache=False), error(), error(use_cache=False, attention_mask=ones)]
print("expected zeros, next to")
print("got", errors)
print("DEVIATES" if errors[0] < 1e-5 and min(errors[1:]) > 0.01 else "fixed")
