import jax
from flax import nnx
x, mask = jax.numpy.ones((2, 4, 8)), jax.numpy.ones((2, 1, 1, 4), bool)
layer = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
layer(x, mask=mask, is_causal=True)
try:
    got = nnx.capture(layer, nnx.Intermediate)(x, mask=mask, is_causal=True, sow_weights=True)[0].shape
except ValueError as error:
    got = error
print("expected", (2, 4, 8), "as without sow_weights")
print("got", repr(got))
print("DEVIATES" if isinstance(got, ValueError) else "fixed")
