import jax.numpy as jnp
from flax import nnx
layer = nnx.MultiHeadAttention(num_heads=1, in_features=4, decode=True, rngs=nnx.Rngs(0))
layer.init_cache((1, 2, 4))  # two slots
try:
    for n in range(4):
        layer(jnp.full((1, 1, 4), float(n)))
    stored = layer.cached_key[...][0, :, 0]
except Exception as error:
    stored = error
of = [layer.key(jnp.full((1, 1, 4), float(n)))[0, 0, 0] for n in range(4)]
wrong = not isinstance(stored, Exception) and (stored[0] == of[0]).all() and (stored[1] == of[3]).all()
print("expected an error, or tokens 2 and 3 in the two slots")
print("got", "tokens 0 and 3" if wrong else repr(stored))
print("DEVIATES" if wrong else "fixed")
