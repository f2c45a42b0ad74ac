import torch
if torch.cuda.is_available():
    torch.manual_seed(1)
    settings = {"activation": "gelu", "batch_first": True, "dtype": torch.float64, "device": "cuda"}
    layer = torch.nn.TransformerEncoderLayer(12, 2, 20, **settings).eval()
    x = torch.randn(2, 7, 12, dtype=torch.float64, device="cuda")
    padding = torch.arange(7, device="cuda")[None] >= torch.tensor([[5], [7]], device="cuda")
    with torch.no_grad():
        fast = layer(x, src_key_padding_mask=padding)
    difference = (fast - layer(x, src_key_padding_mask=padding))[1].abs().max().item()
    print("expected a difference of 1e-15 between the fast path and the other")
    print("got", difference)
    print("DEVIATES" if difference > 1e-5 else "fixed")
else:
    print("not applicable here")
