import torch
attention = torch.nn.functional.scaled_dot_product_attention
if torch.cuda.is_available():
    x, got = torch.ones(2, 2, 4, 4, device="cuda"), []
    for rate in (1.0, 2.0, -0.5):
        try:
            got.append(attention(x, x, x, dropout_p=rate)[0, 0, 0, 0].item())
        except RuntimeError as error:
            got.append("an error")
    print("expected", [0.0, "an error", "an error"], "for the rates 1, 2 and -0.5")
    print("got", got)
    print("DEVIATES" if got[0] != got[0] else "fixed")  # NaN
else:
    print("not applicable here")
