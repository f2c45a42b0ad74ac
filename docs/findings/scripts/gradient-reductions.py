import jax, jax.numpy as jnp
bias, x = jnp.zeros(8, jnp.bfloat16), jnp.zeros((4096, 8), jnp.bfloat16)
cotangent = jnp.full((4096, 8), 0.0101, jnp.bfloat16)
(got,) = jax.vjp(lambda b: x + b, bias)[1](cotangent)
want = cotangent.sum(0)  # summed in float32
print("expected", float(want[0]), "to 0.4 per cent")
print("got", float(got[0]))
print("DEVIATES" if abs(float(got[0]) / float(want[0]) - 1) > 0.01 else "fixed")
