import torch
torch.manual_seed(0)
q, k = torch.zeros(1, 2, 4096, 16, dtype=torch.float16), torch.zeros(1, 2, 2, 16, dtype=torch.float16)
v = torch.zeros(1, 2, 2, 16, dtype=torch.float16, requires_grad=True)
cotangent = (torch.rand(1, 2, 4096, 16) + 1).half()
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)  # weights of 1/2
(got,) = torch.autograd.grad(out, v, cotangent)
want = cotangent.double().sum(2, keepdim=True) / 2
error = ((got - want) / want).abs().max() / 2**-11
print("expected an error of at most 1 half ulp")
print("got", error.item())
print("DEVIATES" if error > 1.5 else "fixed")
