import jax.numpy as jnp
from flax import nnx
def first_token(**dtypes):
    layer = nnx.MultiHeadAttention(2, 8, decode=True, rngs=nnx.Rngs(0), **dtypes)
    layer.init_cache((1, 4, 8))
    try:
        return str(layer(jnp.ones((1, 1, 8), jnp.float32)).dtype)
    except TypeError as error:
        return f"TypeError ({error})"
print("expected float32, bfloat16, float16")
got = [first_token(), first_token(dtype=jnp.bfloat16), first_token(dtype=jnp.float16, param_dtype=jnp.float16)]
print("got", "; ".join(got))
print("DEVIATES" if all(text.startswith("TypeError") for text in got[1:]) else "fixed")
