import mlx.core as mx
mx.set_default_device(mx.cpu)
arrays = [[33.0, 37.0]], [[37.0, -33.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]]
q, k, v = (mx.array([[x]], dtype=mx.float16) for x in arrays)
y = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3)
print("expected", 0.5, "since both scores are 0")
print("got", y[0, 0, 0, 0].item())
print("DEVIATES" if y[0, 0, 0, 0].item() > 0.52 else "fixed")
