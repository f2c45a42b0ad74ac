import ml_dtypes, numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
node = helper.make_node("Softmax", ["x"], ["y"], axis=-1)
info = [helper.make_tensor_value_info(n, T.BFLOAT16, [1, 1024]) for n in "xy"]
model = helper.make_model(helper.make_graph([node], "g", info[:1], info[1:]))
y = ReferenceEvaluator(model).run(None, {"x": np.zeros((1, 1024), ml_dtypes.bfloat16)})[0]
print("expected weights that sum to 1")
print("got", y.astype("float32").sum())
print("DEVIATES" if y.astype("float32").sum() == 4 else "fixed")
