import mlx.core as mx, numpy as np
mx.set_default_device(mx.cpu)
x = mx.array([[[[1.0, 0.0] * 4]]], dtype=mx.float64)
y = mx.fast.rope(x, 8, traditional=True, base=10000.0, scale=1.0, offset=4097)
angle = 4097 * 10000.0 ** (-np.arange(4) / 4)
error = abs(np.array(y).reshape(4, 2) - np.stack([np.cos(angle), np.sin(angle)], -1)).max()
print("expected an error of 1e-13 in float64")
print("got", float(error), "in", y.dtype)
print("DEVIATES" if y.dtype == mx.float64 and error > 1e-6 else "fixed")
