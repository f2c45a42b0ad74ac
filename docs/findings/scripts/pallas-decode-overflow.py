import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.decode_attention import gqa
k, v = jnp.ones((1, 64, 1, 16), jnp.float16), jnp.full((1, 64, 1, 16), 1500, jnp.float16)
with jax.enable_x64(False):
    out = gqa(k[:, 0], k, v, k_splits=1, block_k=16, interpret=True)
print("expected 1500")
print("got", out[0, 0, :3])
print("DEVIATES" if jnp.isinf(out).all() else "fixed")
