import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
config = LlamaConfig(
    hidden_size=16, num_attention_heads=1, head_dim=16, max_position_embeddings=256,
    rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
)
x, short, long = torch.zeros(1, 1, 1, 16), torch.tensor([[1000]]), torch.tensor([[5000]])
module = LlamaRotaryEmbedding(config)
before = module(x, short)[0]
module(x, long)
after = module(x, short)[0]
error = float((before - after).abs().max())
print("expected a difference of 0 before a long position and after it")
print("got", error)
print("DEVIATES" if error > 0.5 else "fixed")
