import onnxruntime as ort, torch
class Attention(torch.nn.Module):
    def forward(self, q, k, v, mask):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)
torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 4, 8)
given = (q, k, v, torch.zeros(4, 4, dtype=torch.bool))
model = torch.onnx.export(Attention(), given, dynamo=True, verbose=False).model_proto
session = ort.InferenceSession(model.SerializeToString())
names = [node.name for node in session.get_inputs()]
y = torch.from_numpy(session.run(None, {n: x.numpy() for n, x in zip(names, given)})[0])
print("expected 0, as in torch:", Attention()(*given)[0, 0, 0, 0].item())
print("got", y[0, 0, 0, 0].item())
print("DEVIATES" if (Attention()(*given) == 0).all() and (y - v.mean(-2)).abs().max() < 1e-6 else "fixed")
