import jax
from flax import linen
x = jax.random.normal(jax.random.key(0), (2, 4, 2, 8))
try:
    got = linen.dot_product_attention(x, x, x, mask=jax.numpy.ones((3, 2, 1, 4, 4), bool)).shape
except Exception as error:
    got = error
print("expected an error: the mask has 5 axes")
print("got", repr(got))
print("DEVIATES" if got == (3, 2, 4, 2, 8) else "fixed")
