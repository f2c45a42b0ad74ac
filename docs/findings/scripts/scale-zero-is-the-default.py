import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft",
                        num_heads=1, scale=0.0)
inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None, None, 8]) for n in "qkv"]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=domains, ir_version=11)
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 5, 8)).astype("float32")
y = ort.InferenceSession(model.SerializeToString()).run(None, dict(q=q, k=k, v=v))[0]
error = np.abs(y - v.mean(1)).max()
print("expected the mean of all values, an error of 1e-7")
print("got", error)
print("DEVIATES" if error > 0.1 else "fixed")
