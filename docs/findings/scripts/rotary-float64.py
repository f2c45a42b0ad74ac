import torch
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
rotary = LlamaRotaryEmbedding(LlamaConfig(hidden_size=16, num_attention_heads=1))
x, position = torch.ones(1, 1, 16, dtype=torch.float64), torch.tensor([[4097]])
cosine, _ = rotary(x, position)
angle = 4097 * 10000.0 ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16)
error = (cosine[0, 0, :8] - angle.cos()).abs().max()
print("expected an error of 1e-12 in float64")
print("got", float(error), "in", cosine.dtype)
print("DEVIATES" if error > 1e-6 else "fixed")
