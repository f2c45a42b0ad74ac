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
node = op.scaled_dot_product_attention(inputs[0], kept(inputs[1], "key"), kept(inputs[2], "value"), mask)
model = ov.Model([op.result(node)], writes, [*inputs, samples, mask])
q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 16, 8)).astype("float32")
def last_row(**more):
    request = ov.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **more}).create_infer_request()
    for n in (slice(0, 15), slice(15, 16)):  # a prompt, and a step
        seen = np.zeros((1, 1, n.stop - n.start, n.stop), "float32")
        row = request.infer([x[:, :, n] for x in (q, k, v)] + [np.zeros(1, "int32"), seen])[0]
    return row
scores = q[:, :, 15:] @ k.swapaxes(2, 3) / 8**0.5
weights = np.exp(scores)
right = weights / weights.sum(-1, keepdims=True) @ v
errors = [abs(last_row(**more) - right).max() for more in ({}, {"KV_CACHE_PRECISION": "f32"})]
print("expected errors next to 0 by default and with KV_CACHE_PRECISION")
print("got", errors)
print("DEVIATES" if errors[0] > 1e-3 > 1e-5 > errors[1] else "fixed")
