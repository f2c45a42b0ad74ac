import torch
from transformers.models.llama.modeling_llama import eager_attention_forward
layer = torch.nn.Module()
layer.num_key_value_groups = 1
q, k, v = torch.randn(3, 1, 2, 5, 8, dtype=torch.float64)
out = eager_attention_forward(layer, q[None, 0], k[None, 0], v[None, 0], None, 0.3)[0]
want = torch.softmax(q @ k.mT * 0.3, -1) @ v
error = (out[0].transpose(0, 1) - want[0]).abs().max().item()
print("expected an error of 1e-15 in float64")
print("got", error)
print("DEVIATES" if error > 1e-9 else "fixed")
