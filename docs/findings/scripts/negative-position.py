import numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
node = helper.make_node("RotaryEmbedding", ["x", "cosine", "sine", "ids"], ["y"])
kinds = {"x": T.FLOAT, "cosine": T.FLOAT, "sine": T.FLOAT, "ids": T.INT64}
inputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in kinds.items()]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
angle = np.arange(16)[:, None] * 10000.0 ** (-np.arange(4) / 4)  # 16 positions
x, table = np.ones((1, 1, 2, 8), "float32"), [f(angle).astype("float32") for f in (np.cos, np.sin)]
def turned(ids):
    feed = dict(x=x, cosine=table[0], sine=table[1], ids=np.array([ids]))
    return ReferenceEvaluator(model).run(None, feed)[0]
try:
    got = turned([-1, 0])
except Exception as error:
    got = error
wrong = not isinstance(got, Exception) and np.array_equal(got, turned([15, 0]))
print("expected an error: there is no position -1")
print("got", "the rotation by the last position of the table" if wrong else repr(got))
print("DEVIATES" if wrong else "fixed")
