import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha
q, k = jnp.ones((1, 32, 1, 8), "float32"), jnp.ones((1, 16, 1, 8), "float32")
with jax.enable_x64(False):
    out = mha(q, k, k, None, 1.0, True, BlockSizes(16, 16), interpret=True)
print("expected ones")
print("got", out[0, ::8, 0, 0])
print("DEVIATES" if (out[0, :16] == 1).all() and not (out[0, 16:] == 1).any() else "fixed")
