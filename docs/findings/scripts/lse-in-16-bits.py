import jax, jax.numpy as jnp
q = jnp.full((1, 1, 1, 64), 2.72, "bfloat16")
k = q * jnp.ones((1, 2, 1, 1), "bfloat16")
out, lse = jax.nn.dot_product_attention(q, k, k, return_residual=True)
want = jax.nn.logsumexp(jnp.full(2, float(q[0, 0, 0, 0]) ** 2 * 64 / 8, "float32"))
print("expected float32", float(want))
print("got", lse.dtype, float(lse[0, 0, 0]))
print("DEVIATES" if lse.dtype == "bfloat16" and abs(float(lse[0, 0, 0]) - float(want)) > 0.05 else "fixed")
