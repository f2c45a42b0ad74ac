import numpy as np, openvino as ov
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo
inputs, writes = [op.parameter([-1, 2, -1, 8], ov.Type.f32) for _ in range(3)], []
samples, mask, one = op.parameter([-1], ov.Type.i32), op.parameter([-1] * 4, ov.Type.f32), op.constant(np.int64(0))
def kept(new, name):
    info = VariableInfo()
    info.variable_id, info.data_type, info.data_shape = name, ov.Type.f32, ov.PartialShape([-1, 2, -1, 8])
    state = Variable(info)
    empty = op.broadcast(op.constant(np.float32(0)), op.constant(np.array([1, 2, 0, 8])))
    both = op.concat([op.gather(ov.op.read_value(empty, state), samples, one), new], 2)
    writes.append(ov.op.assign(both, state))
    return both
nodes = [inputs[0], kept(inputs[1], "key"), kept(inputs[2], "value"), mask]
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 8)).astype("float32")
def off(scale):
    node = op.scaled_dot_product_attention(*nodes, op.constant(np.float32(scale)))
    model = ov.Model([op.result(node)], writes, [*inputs, samples, mask])
    config = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    compiled = ov.compile_model(model, "CPU", config)
    got = compiled([q, k, v, np.zeros(1, "int32"), np.zeros((1, 1, 16, 16), "float32")])[0]
    return abs(got - v.mean(2, keepdims=True)).max()
errors = off(0), off(1e-30)
print("expected errors next to 0 for the scales 0 and 1e-30")
print("got", errors)
print("DEVIATES" if errors[0] > 0.1 and errors[1] < 1e-5 else "fixed")
