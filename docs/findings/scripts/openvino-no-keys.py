import numpy as np, openvino as ov
from openvino import opset13 as op
inputs = [op.parameter([-1, 2, -1, 8], ov.Type.f32) for _ in range(3)]
model = ov.Model([op.scaled_dot_product_attention(*inputs)], inputs)
request = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
x = np.random.default_rng(0).standard_normal((1, 2, 7, 8)).astype("float32")
before = request.infer([x, x, x])[0].copy()
got = request.infer([x, x[:, :, :0], x[:, :, :0]])[0]
print("expected zeros for no keys")
print("got", got[0, 0, 0, :3], "the answer of the call before" if (got == before).all() else "")
print("DEVIATES" if (got == before).all() else "fixed")
