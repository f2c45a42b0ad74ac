import torch
from torch.ao.nn.quantizable import MultiheadAttention

torch.manual_seed(0)
plain = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
layer = MultiheadAttention(8, 2, batch_first=True).eval()
own = dict(zip("QKV", zip(plain.in_proj_weight.chunk(3), plain.in_proj_bias.chunk(3))))
with torch.no_grad():
    for name, (weight, bias) in own.items():
        linear = getattr(layer, f"linear_{name}")
        linear.weight.copy_(weight)
        linear.bias.copy_(bias)
    layer.out_proj.load_state_dict(plain.out_proj.state_dict())
    x = torch.randn(3, 5, 8)
    want, got = plain(x, x, x)[0], layer(x, x, x)[0]
print("expected", want[0, 0, :4].tolist())
print("got", got[0, 0, :4].tolist())
print("fixed" if torch.allclose(got, want, atol=1e-5) else "DEVIATES")
