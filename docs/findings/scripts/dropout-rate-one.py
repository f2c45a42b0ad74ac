import jax
from flax import nnx
x = jax.random.normal(jax.random.key(0), (2, 4, 8))
settings = dict(dropout_rate=1.0, deterministic=False, decode=False)
out = nnx.MultiHeadAttention(2, 8, **settings, rngs=nnx.Rngs(0))(x)
print("expected zeros, since every weight is dropped")
print("got", out[0, 0, :3])
print("DEVIATES" if jax.numpy.isnan(out).all() else "fixed")
