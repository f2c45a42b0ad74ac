import jax.numpy as jnp
from flax import linen
x = jnp.ones((1, 3, 2, 8), jnp.bfloat16)
plain, forced = (linen.dot_product_attention(x, x, x, force_fp32_for_softmax=on).dtype for on in (False, True))
print("expected bfloat16 twice")
print("got", plain, "and", forced)
print("DEVIATES" if plain == jnp.bfloat16 and forced == jnp.float32 else "fixed")
