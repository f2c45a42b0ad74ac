import jax.numpy as jnp
from flax import nnx
layer = nnx.MultiHeadAttention(2, 8, rngs=nnx.Rngs(0))
view = nnx.view(layer, deterministic=True, decode=True, batch_size=1, max_length=5)
try:
    got = view(jnp.ones((1, 1, 8))).shape
except ValueError as error:
    got = error
print("expected", (1, 1, 8))
print("got", repr(got))
print("DEVIATES" if "cache not initialized" in str(got) else "fixed")
