import jax, jax.numpy as jnp
q, k, v = (jax.random.normal(key, (1, 5, 2, 8)) for key in jax.random.split(jax.random.key(0), 3))
attention = jax.nn.dot_product_attention

def merged(q):
    parts = [attention(q, k[:, s], v[:, s], return_residual=True) for s in (slice(2), slice(2, 5))]
    (a, x), (b, y) = parts
    return a * jax.nn.sigmoid(x - y)[..., None] + b * jax.nn.sigmoid(y - x)[..., None]

same = jnp.allclose(merged(q), attention(q, k, v), atol=1e-6)
got, want = (jax.grad(lambda q, f=f: f(q).sum())(q) for f in (merged, lambda q: attention(q, k, v)))
error = float(abs(got - want).max() / abs(want).max())
print("expected equal outputs, and gradients that differ by 1e-6")
print("got", "equal outputs" if same else "other outputs", "and gradients that differ by", error)
print("DEVIATES" if same and error > 0.1 else "fixed")
