import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
node = helper.make_node("MultiHeadAttention", ["q", "k", "v", "", "n"], ["y"], domain="com.microsoft",
                        num_heads=1)
inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None, None, 8]) for n in "qkv"]
inputs.append(helper.make_tensor_value_info("n", T.INT32, [None]))
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=domains, ir_version=11)
q, v = np.ones((1, 1, 8), "float32"), np.ones((1, 2, 8), "float32")
k = np.stack([np.zeros(8), np.full(8, 1e4)]).astype("float32")[None]
v[0, 1] = 7  # beyond the length
lengths = np.array([1], "int32")
y = ort.InferenceSession(model.SerializeToString()).run(None, dict(q=q, k=k, v=v, n=lengths))[0]
print("expected 1, the value within the length")
print("got", y[0, 0, 0])
print("DEVIATES" if (y == 7).all() else "fixed")
