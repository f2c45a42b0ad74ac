import jax
from flax import nnx
q, k, v = (jax.random.normal(jax.random.key(i), (2, 5, h, 8)) for i, h in enumerate((4, 4, 2)))
try:
    got = nnx.dot_product_attention(q, k, v, module=nnx.Module()).shape
except Exception as error:
    got = error
print("expected an error, as without a module: 4 heads of keys, 2 of values")
print("got", repr(got))
print("DEVIATES" if got == (2, 5, 4, 8) else "fixed")
