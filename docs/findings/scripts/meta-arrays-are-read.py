import torch
q, k, v = torch.randn(3, 1, 1, 3, 8)
mask = torch.ones(3, 3, dtype=torch.bool, device="meta")
attention = torch.nn.functional.scaled_dot_product_attention
try:
    got = [attention(q, k, v, attn_mask=mask).device.type, q[0, 0].mm(torch.ones(8, 2, device="meta")).device.type]
except (RuntimeError, NotImplementedError) as error:
    got = error
print("expected errors: an array on the device meta has no memory")
print("got answers on the devices", got)
print("DEVIATES" if got == ["cpu", "cpu"] else "fixed")
