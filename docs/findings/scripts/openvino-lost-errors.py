import numpy as np, openvino as ov
from openvino import opset13 as op
def answered(threads):
    inputs = [op.parameter([-1, 4, -1, 8], ov.Type.f32) for _ in range(3)]
    model = ov.Model([op.scaled_dot_product_attention(*inputs)], inputs)
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    x = np.ones((2, 4, 7, 8), "float32")
    try:
        ov.compile_model(model, "CPU", config)([x, x, x[:, :, :6]])  # 7 keys and 6 values
        return True
    except RuntimeError:
        return False
got = [answered(threads) for threads in (1, 2)]
print("expected an error with 1 thread and with 2")
print("got", ["an answer" if answer else "an error" for answer in got])
print("DEVIATES" if got == [True, False] else "fixed")
