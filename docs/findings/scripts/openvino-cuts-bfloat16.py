import numpy as np, openvino as ov
from openvino import opset13 as op
inputs = [op.parameter([-1, 1, -1, 8], ov.Type.bf16) for _ in range(3)]
model = ov.Model([op.scaled_dot_product_attention(*inputs)], inputs)
request = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
def tensor(x):
    words = (x.astype("float32").view(np.uint32) >> 16).astype(np.uint16)
    return ov.Tensor(words, list(x.shape), ov.Type.bf16)
value = np.ones((1, 1, 16, 8))
value[:, :, :15] += 2**-7  # the mean lies 15/16 of the way to the next number of bfloat16
request.infer([tensor(x) for x in (np.zeros((1, 1, 1, 8)), np.zeros(value.shape), value)])
bits = np.array(request.get_output_tensor(0).data).view(np.uint16).astype(np.uint32) << 16
got = bits.view(np.float32)
flags = open("/proc/cpuinfo").read().split()
print("expected", 1 + 2**-7)
print("got", got[0, 0, 0, 0])
print("not applicable here" if "avx512f" in flags else "DEVIATES" if (got == 1).all() else "fixed")
