import torch
from torch.utils.checkpoint import checkpoint
def drops(v):
    zeros = torch.zeros(1, 1, 8, 4)
    return torch.nn.functional.scaled_dot_product_attention(zeros, zeros, v, dropout_p=0.5)
def apart(function):  # how far the backward pass' pattern is from the forward pass'
    v = torch.eye(8).expand(1, 1, 8, 8).clone().requires_grad_()
    weights = function(v)
    weights.sum().backward()
    return float((v.grad[..., 0] - weights.detach().sum(-2)).abs().max())
def checkpointed(v):
    return checkpoint(drops, v, use_reentrant=False)
torch.manual_seed(0)
plain, eager, aot = (apart(f) for f in (
    checkpointed, torch.compile(checkpointed, backend="eager"), torch.compile(checkpointed, backend="aot_eager"),
))
print("expected 0.0 three times")
print("got", plain, eager, aot)
print("DEVIATES" if plain == aot == 0 and eager > 0.1 else "fixed")
