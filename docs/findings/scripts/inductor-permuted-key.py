import torch
torch.manual_seed(0)
def attention(q, k, v):  # keys are handed in as (Lk, H, B, D)
    return torch.softmax(q @ k.permute(2, 1, 3, 0) * 0.5, dim=-1) @ v
q, v = (torch.randn(5, 5, 3, 8).transpose(1, 2) for _ in "qv")  # (B, H, L, D)
k = torch.randn(5, 3, 5, 8)
got, want = torch.compile(attention)(q, k, v), attention(q, k, v)
error = (got - want).abs().max().item()
print("expected an error of 1e-6")
print("got", error)
print("DEVIATES" if error > 0.1 else "fixed")
