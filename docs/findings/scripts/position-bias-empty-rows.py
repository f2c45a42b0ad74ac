import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend
q, k, v = torch.randn(3, 1, 1, 4, 8)
layer, mask = torch.nn.Module(), torch.zeros(1, 1, 4, 4, dtype=torch.bool)
alone = attend(layer, q[None, 0], k[None, 0], v[None, 0], mask, is_causal=False)[0]
biased = attend(layer, q[None, 0], k[None, 0], v[None, 0], mask, is_causal=False,
                position_bias=torch.zeros(1, 1, 4, 4))[0]
wrong = (alone == 0).all() and torch.allclose(biased[0, 0, 0], v[0, 0].mean(0), atol=1e-6)
print("expected zeros for a fully masked row, as without position_bias")
print("got", biased[0, 0, 0, :3].tolist(), "the mean of the values" if wrong else "")
print("DEVIATES" if wrong else "fixed")
