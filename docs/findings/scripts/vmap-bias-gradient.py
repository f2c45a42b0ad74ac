import torch, warnings
warnings.simplefilter("ignore")
attend = torch.nn.functional.scaled_dot_product_attention
q, k, v = torch.randn(3, 2, 1, 3, 5, 8)
bias = torch.randn(2, 1, 3, 5, 5, requires_grad=True)
for sample in range(2):
    attend(q[sample], k[sample], v[sample], attn_mask=bias[sample]).sum().backward()
try:
    got = torch.func.vmap(lambda q, k, v, b: attend(q, k, v, attn_mask=b))(q, k, v, bias).shape
except RuntimeError as error:
    got = error
print("expected the answers of the loop, (2, 1, 3, 5, 8)")
print("got", repr(got)[:100])
print("DEVIATES" if "not differentiable with respect to argument 'attn_mask'" in str(got) else "fixed")
