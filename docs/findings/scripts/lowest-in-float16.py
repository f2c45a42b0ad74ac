import torch
from transformers.models.llama.modeling_llama import eager_attention_forward
layer = torch.nn.Module().eval()
layer.num_key_value_groups = 1
q = torch.ones(1, 1, 1, 1, dtype=torch.float16)
k = torch.tensor([-30.0, 1.0], dtype=torch.float16).view(1, 1, 2, 1)
v = torch.tensor([1.0, 3.0], dtype=torch.float16).view(1, 1, 2, 1)
mask = torch.full((1, 1, 1, 2), torch.finfo(torch.float16).min, dtype=torch.float16)
out = eager_attention_forward(layer, q, k, v, mask, 1.0)[0]
print("expected 2, the mean, as in bfloat16 and float32")
print("got", out.item())
print("DEVIATES" if out.item() == 3.0 else "fixed")
