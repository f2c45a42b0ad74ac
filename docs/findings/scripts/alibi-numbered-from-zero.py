import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
bias = build_alibi_tensor(torch.ones(1, 2048, dtype=int), 16, torch.bfloat16)[0, 0]
print("expected biases that are 0.7 apart")
print("got", bias[-4:].tolist())
print("DEVIATES" if (bias[-4:] == bias[-1]).all() else "fixed")
