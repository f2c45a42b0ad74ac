import numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
inputs = [helper.make_tensor_value_info(n, T.FLOAT16, None) for n in "qkv"]
graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT16, None)])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 64, 32)).astype("float16")
q, k = q - q.mean(-1, keepdims=True), k + 16  # large products, and scores that are not
got = ReferenceEvaluator(model).run(None, dict(q=q, k=k, v=v))[0].astype(float)
def attend(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(float)
scores = q.astype(float) @ k.astype(float).swapaxes(-1, -2) / 32**0.5
once = attend(scores.astype("float16").astype(float))  # scores rounded, and nothing else
error, least = (np.sqrt(((x - attend(scores)) ** 2).mean()) for x in (got, once))
print("expected an error as that of scores rounded once, a ratio of 1")
print("got", error / least)
print("DEVIATES" if error > 2 * least else "fixed")
