import mlx.core as mx
mx.set_default_device(mx.cpu)
w = mx.array([[1.0, -0.9999] + [0.0] * 62])
kept = mx.dequantize(*mx.quantize(w, group_size=64, bits=8), group_size=64, bits=8)
error = abs(kept - w).max().item() / (1.9999 / 255)
print("expected an error of at most 0.5 steps")
print("got", error)
print("DEVIATES" if error > 0.9 else "fixed")
