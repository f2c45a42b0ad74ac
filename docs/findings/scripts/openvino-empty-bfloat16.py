import openvino as ov
from openvino import opset13 as op
def compiles(kind, batch):
    x = op.parameter([batch, 4, 8, 8], kind)
    model = ov.Model([op.scaled_dot_product_attention(x, x, x)], [x])
    try:
        return bool(ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}))
    except RuntimeError:
        return False
kinds = ov.Type.f32, ov.Type.bf16, ov.Type.f64
got = [compiles(kind, 0) for kind in kinds]
print("expected models of float32, bfloat16 and float64 that compile for an empty batch")
print("got", repr(got))
print("DEVIATES" if got == [True, False, False] and compiles(ov.Type.bf16, -1) else "fixed")
