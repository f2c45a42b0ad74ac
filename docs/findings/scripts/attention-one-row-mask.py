import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
def run(opset, x, mask):
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"])
    inputs = [helper.make_tensor_value_info(n, T.BOOL if n == "m" else kind, [None] * 4) for n in "qkvm"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)
    return ort.InferenceSession(model.SerializeToString()).run(None, dict(q=x, k=x, v=x, m=mask))[0]
x, mask = np.random.rand(1, 2, 3, 8), np.ones((1, 1, 1, 3), bool)
want = run(23, x, mask).shape  # float64
try:
    got = run(23, x.astype("float32"), mask).shape
except Exception as error:
    got = error
print("expected", want, "as in float64")
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, Exception) else "fixed")
