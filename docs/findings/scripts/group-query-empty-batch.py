import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
node = helper.make_node("GroupQueryAttention", ["q", "k", "v", "", "", "last", "total"],
                        ["y", "past_key", "past_value"], domain="com.microsoft",
                        num_heads=2, kv_num_heads=2)
inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None, None, 16]) for n in "qkv"]
inputs += [helper.make_tensor_value_info(n, T.INT32, [None]) for n in ("last", "total")]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=domains, ir_version=11)
x = np.zeros((0, 5, 16), "float32")
session = ort.InferenceSession(model.SerializeToString())
print("expected a result of shape (0, 5, 16)")
print("got", end=" ", flush=True)  # the process ends here
y = session.run(None, dict(q=x, k=x, v=x, last=np.zeros(0, "int32"), total=np.array([5], "int32")))
print(y[0].shape)
print("fixed")
