import numpy as np
from onnx import TensorProto as T, helper
from onnx.reference import ReferenceEvaluator
def run(D, **scale):
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], **scale)
    inputs = [helper.make_tensor_value_info(n, T.DOUBLE, None) for n in "qkv"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.DOUBLE, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)])
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, D))
    return ReferenceEvaluator(model).run(None, dict(q=q, k=k, v=v))[0]
errors = [abs(run(D) - run(D, scale=D**-0.5)).max() for D in (4, 16)]
print("expected scales of 1/2 and 1/4 equal the defaults: differences of 0")
print("got", *errors)
print("DEVIATES" if errors[0] > 1e-9 and errors[1] == 0 else "fixed")
