import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.decode_attention import gqa
q, k = jnp.ones((1, 2, 8), "bfloat16"), jnp.ones((1, 32, 1, 8), "bfloat16")
with jax.enable_x64(False):
    out = gqa(q, k, k, block_k=16, k_splits=2, interpret=True)
print("expected bfloat16")
print("got", out.dtype)
print("DEVIATES" if out.dtype == "float32" else "fixed")
