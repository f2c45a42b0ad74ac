import jax, jax.numpy as jnp
from jax.experimental.pallas.ops.gpu.attention import mha
q = jnp.ones((1, 16, 1, 8), "float32")
try:
    with jax.enable_x64(True):
        got = mha(q, q, q, None, 1.0, True, interpret=True).shape
except TypeError as error:
    got = error
print("expected", (1, 16, 1, 8))
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, TypeError) else "fixed")
