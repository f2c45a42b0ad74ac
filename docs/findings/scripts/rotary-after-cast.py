import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
config = LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=64)
x, position = torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16), torch.tensor([[4097]])
right = LlamaRotaryEmbedding(config)(x, position)[0]
cast = LlamaRotaryEmbedding(config).bfloat16()(x, position)[0]
error = float((right - cast).abs().max())
print("expected", 0.0)
print("got", error)
print("DEVIATES" if error > 0.5 else "fixed")
