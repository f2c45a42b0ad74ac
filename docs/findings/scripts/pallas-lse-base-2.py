import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.attention import BlockSizes, mha
x = jnp.zeros((1, 32, 1, 16), jnp.float32)
with jax.enable_x64(False):
    _, lse = mha(x, x, x, None, block_sizes=BlockSizes(*[16] * 6), return_residuals=True, interpret=True)
print("expected equal")
print("got", lse[0, 0, 0], jnp.log(32.0))
print("DEVIATES" if lse[0, 0, 0] == 5 else "fixed")
