import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
def run(opset, x):
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None] * 4) for n in "qkv"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=12)
    return ort.InferenceSession(model.SerializeToString()).run(None, dict(q=x, k=x, v=x))[0]
x = np.zeros((0, 2, 3, 8), "float32")
want = run(25, x).shape
try:
    got = run(24, x).shape
except Exception as error:
    got = error
print("expected", want, "as in opset 25")
print("got", repr(got)[:100])
print("DEVIATES" if want == x.shape and isinstance(got, Exception) else "fixed")
