import numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
def run(x, **heads):
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], **heads)
    inputs = [helper.make_tensor_value_info(n, T.FLOAT, None) for n in "qkv"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    return ReferenceEvaluator(model).run(None, dict(q=x, k=x, v=x))[0]
want = run(np.zeros((0, 2, 3, 8), "float32")).shape
try:
    got = run(np.zeros((0, 3, 16), "float32"), q_num_heads=2, kv_num_heads=2).shape
except ValueError as error:
    got = error
print("expected", (0, 3, 16), "as with four axes", want)
print("got", repr(got))
print("DEVIATES" if want == (0, 2, 3, 8) and isinstance(got, ValueError) else "fixed")
