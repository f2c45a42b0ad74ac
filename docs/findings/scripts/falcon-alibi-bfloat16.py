import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor as bloom
from transformers.models.falcon.modeling_falcon import build_alibi_tensor as falcon
shown = torch.ones(1, 2048, dtype=int)
wide, narrow = bloom(shown, 32, torch.float32), falcon(shown, 32, torch.float32)
print("expected the last biases of BLOOM,", wide[0, 0, -3:].tolist())
print("got", narrow[0, 0, -3:].tolist())
print("DEVIATES" if (wide - narrow).abs().max() > 5 and narrow[0, 0, -1] == narrow[0, 0, -2] else "fixed")
