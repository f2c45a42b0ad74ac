import numpy as np, onnxruntime as ort
from onnx import TensorProto as T, helper
def run(causal):
    domains = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    names = ["q", "k", "v", "", "", "last", "total", "", "", "", "bias"]
    node = helper.make_node("GroupQueryAttention", names, ["y", "past_key", "past_value"],
                            domain="com.microsoft", num_heads=1, kv_num_heads=1, causal=causal)
    inputs = [helper.make_tensor_value_info(n, T.FLOAT, [None, None, 8]) for n in "qkv"]
    inputs += [helper.make_tensor_value_info(n, T.INT32, [None]) for n in ("last", "total")]
    inputs.append(helper.make_tensor_value_info("bias", T.FLOAT, [None] * 4))
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", T.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=domains, ir_version=11)
    x, bias = np.ones((1, 4, 8), "float32"), np.zeros((1, 1, 4, 4), "float32")
    bias[..., 2, :] = -np.inf
    given = dict(q=x, k=x, v=x, bias=bias, last=np.array([3], "int32"), total=np.array([4], "int32"))
    return ort.InferenceSession(model.SerializeToString()).run(None, given)[0][0, 2]
causal, plain = run(1), run(0)
print("expected one answer for a fully masked row")
print("got", causal[0], "if causal and", plain[0], "if not")
print("DEVIATES" if (causal == 0).all() and np.isnan(plain).all() else "fixed")
