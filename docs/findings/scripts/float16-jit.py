import jax
q = jax.numpy.ones((1, 4, 2, 8), jax.numpy.float16)
jax.nn.dot_product_attention(q, q, q)
try:
    got = jax.block_until_ready(jax.jit(jax.nn.dot_product_attention)(q, q, q)).shape
except Exception as error:
    got = error
print("expected", (1, 4, 2, 8), "as without jit")
print("got", repr(got)[:100])
print("DEVIATES" if "not supported" in str(got) else "fixed")
