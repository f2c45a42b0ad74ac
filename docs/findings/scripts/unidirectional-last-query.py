import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft",
                        num_heads=1, unidirectional=1)
inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None, None, 8]) for n in "qkv"]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=domains, ir_version=11)
q, k = np.zeros((1, 4, 8), "float32"), np.zeros((1, 6, 8), "float32")  # equal weights
v = np.repeat(np.arange(6, dtype="float32"), 8).reshape(1, 6, 8)
y = ort.InferenceSession(model.SerializeToString()).run(None, dict(q=q, k=k, v=v))[0][0, :, 0]
print("expected the means of the keys that each row sees, 0, 0.5, 1 and 1.5")
print("got", y)
print("DEVIATES" if np.abs(y - [0, 0.5, 1, 2.5]).max() < 1e-6 else "fixed")
