import equinox as eqx, jax, jax.numpy as jnp
x = jnp.ones(100)
try:
    got = [eqx.nn.Dropout(p)(x, key=jax.random.key(0))[0].item() for p in (2.0, -0.5)]
except Exception as error:
    got = error
print("expected an error for the rates 2 and -0.5")
print("got", repr(got))
print("DEVIATES" if not isinstance(got, Exception) else "fixed")
