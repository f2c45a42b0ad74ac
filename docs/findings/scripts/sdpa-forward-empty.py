import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
q = torch.zeros(0, 2, 3, 8)
layer = torch.nn.Module()
try:
    got = sdpa_attention_forward(layer, q, q, q, None)[0].shape
except RuntimeError as error:
    got = error
print("expected", (0, 3, 2, 8))
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, RuntimeError) else "fixed")
