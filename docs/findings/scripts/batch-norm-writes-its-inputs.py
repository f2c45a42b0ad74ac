import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
names = ["x", "scale", "bias", "mean", "variance"]
node = helper.make_node("BatchNormalization", names, ["y", "new_mean", "new_variance"], training_mode=1)
inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None, 3] if n == "x" else [3]) for n in names]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
x, one, mean = np.random.rand(6, 3).astype("float32") + 5, np.ones(3, "float32"), np.zeros(3, "float32")
session = ort.InferenceSession(model.SerializeToString())
session.run(None, dict(x=x, scale=one, bias=one, mean=mean, variance=one.copy()))
print("expected an input mean that is left as it was, zeros")
print("got", mean)
print("DEVIATES" if (mean != 0).all() else "fixed")
