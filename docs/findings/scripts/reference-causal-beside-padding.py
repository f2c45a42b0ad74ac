import numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
node = helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], is_causal=1)
inputs = [helper.make_tensor_value_info(n, T.BOOL if n == "m" else T.FLOAT, None) for n in "qkvm"]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
x = np.random.default_rng(0).random((1, 1, 4, 8), "float32")
mask = np.array([True, True, True, False]).reshape(1, 1, 1, 4)
run = ReferenceEvaluator(model).run
small = run(None, dict(q=x, k=x, v=x, m=mask))[0]
full = run(None, dict(q=x, k=x, v=x, m=np.repeat(mask, 4, 2)))[0]
error = abs(small - full).max()
print("expected one answer for a mask of one row and for its copies, a difference of 0")
print("got", error)
print("DEVIATES" if (small == x[:, :, :1]).all() and error > 0.01 else "fixed")
