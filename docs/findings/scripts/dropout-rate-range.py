import jax
from flax import linen, nnx
x = jax.random.normal(jax.random.key(0), (2, 4, 2, 8))
def first(attention, rate):
    return attention(x, x, x, dropout_rng=jax.random.key(1), dropout_rate=rate)[0, 0, 0, 0].item()
library = nnx.dot_product_attention, linen.dot_product_attention
try:
    got = [first(attention, rate) for attention in library for rate in (2.0, -0.5)]
except ValueError as error:
    got = error
print("expected an error for the rates 2 and -0.5")
print("got", repr(got))
print("DEVIATES" if not isinstance(got, ValueError) else "fixed")
