import numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
node = helper.make_node("Attention", ["q", "k", "v"], ["y"], scale=-0.2)
inputs = [helper.make_tensor_value_info(n, T.FLOAT, None) for n in "qkv"]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8)).astype("float32")
y = ReferenceEvaluator(model).run(None, dict(q=q, k=k, v=v))[0]
print("expected the softmax of -0.2 q k^T, or an error")
print("got", y[0, 0, 0, :3])
print("DEVIATES" if np.isnan(y).all() else "fixed")
