import jax, jax.numpy as jnp
from flax import nnx
x = jax.random.normal(jax.random.key(0), (1, 5, 8), "float32")
layer = nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0))
want = layer(x, is_causal=True, decode=False)
layer.init_cache(x.shape)
rows = [layer(x[:, n : n + 1], is_causal=True, decode=True) for n in range(5)]
error = abs(jnp.concatenate(rows, 1) - want).max((0, 2))
print("expected errors next to 0 at each of 5 tokens")
print("got", error)
print("DEVIATES" if error[0] < 1e-5 < 0.01 < error[1:].min() else "fixed")
