import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
inputs = [helper.make_tensor_value_info(n, T.DOUBLE, [None] * 4) for n in "qkv"]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.DOUBLE, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8))
got = ort.InferenceSession(model.SerializeToString()).run(None, dict(q=q, k=k, v=v))[0]
want = ReferenceEvaluator(model).run(None, dict(q=q, k=k, v=v))[0]
error = abs(got - want).max()
print("expected an error of 1e-15 in float64")
print("got", error)
print("DEVIATES" if error > 1e-9 else "fixed")
