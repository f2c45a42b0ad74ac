import torch
layer, rows = torch.nn.LayerNorm(8).bfloat16(), 1024 * torch.get_num_threads()
layer(torch.randn(rows, 8).bfloat16()).sum().backward()
print("expected", rows)
print("got", layer.bias.grad[0].item())
print("DEVIATES" if layer.bias.grad[0] < rows / 2 else "fixed")
