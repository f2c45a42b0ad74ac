import torch
layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
x = torch.randn(2, 5, 8)
with torch.no_grad():
    causal, plain = layer(x, x, x, is_causal=True)[0], layer(x, x, x)[0]
try:
    slow = layer(x, x, x, is_causal=True)[0]
except RuntimeError as error:
    slow = error
same = torch.equal(causal, plain)
print("expected an error, as with gradients, or rows that do not see the future")
print("got", "the answer without is_causal" if same else "another answer")
print("DEVIATES" if same and isinstance(slow, RuntimeError) else "fixed")
