import torch
x = torch.randn(1, 2, 5, 8)
attention = torch.nn.functional.scaled_dot_product_attention
layer = torch.nn.MultiheadAttention(8, 2, dropout=-0.5)
try:
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        same = torch.equal(attention(x, x, x, dropout_p=-0.5), attention(x, x, x))
    one, two = (layer(x[0], x[0], x[0])[0] for _ in range(2))  # in training, with weights
    got = "answers without dropout" if same and torch.equal(one, two) else "answers with dropout"
except (RuntimeError, ValueError) as error:
    got = error
print("expected errors for the rate -0.5")
print("got", repr(got))
print("DEVIATES" if got == "answers without dropout" else "fixed")
