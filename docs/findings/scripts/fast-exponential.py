import torch
s = torch.linspace(-8, 0, 512, dtype=torch.float16)
k = torch.zeros(1, 1, 2, 16, dtype=torch.float16)
q = torch.zeros(1, 1, 512, 16, dtype=torch.float16)
k[..., 0, 0], q[..., 0] = 1, s
v = torch.zeros(1, 1, 2, 16, dtype=torch.float16)
v[..., 0, :] = 1  # the output is e^s / (1 + e^s)
got = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)[0, 0, :, 0].double()
want = torch.sigmoid(s.double())
error = ((got - want) / want).abs().max().item()
print("expected a relative error of at most", 2.0**-11)
print("got", error)
print("DEVIATES" if error > 2.0**-11 else "fixed")
