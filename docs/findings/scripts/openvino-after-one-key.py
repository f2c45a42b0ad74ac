import numpy as np, openvino as ov
from openvino import opset13 as op
def compiled():
    inputs = [op.parameter([-1, 2, -1, 8], ov.Type.f32) for _ in range(3)]
    model = ov.Model([op.scaled_dot_product_attention(*inputs)], inputs)
    return ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 8)).astype("float32")
right, model = compiled()([q, k, v])[0], compiled()
model([q, k[:, :, :1], v[:, :, :1]])
wrong = model([q, k, v])[0]
print("expected one answer before a call with one key and after, a difference of 0")
print("got", abs(right - wrong).max())
print("DEVIATES" if abs(wrong).max() > abs(v).max() else "fixed")
