import onnxruntime as ort, torch
class Tenth(torch.nn.Module):
    def forward(self, x):
        return x * 0.1
x = torch.ones(3, dtype=torch.float64)
model = torch.onnx.export(Tenth(), (x,), dynamo=True, verbose=False).model_proto
session = ort.InferenceSession(model.SerializeToString())
y = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
print("expected", 0.1)
print("got", float(y[0]))
print("DEVIATES" if abs(y[0] - 0.1) > 1e-10 else "fixed")
