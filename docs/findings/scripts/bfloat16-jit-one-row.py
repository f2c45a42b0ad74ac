import jax
q, k = jax.numpy.ones((1, 1, 1, 1), "bfloat16"), jax.numpy.ones((1, 2, 1, 1), "bfloat16")
jax.nn.dot_product_attention(q, k, k)
try:
    got = jax.block_until_ready(jax.jit(jax.nn.dot_product_attention)(q, k, k)).shape
except Exception as error:
    got = error
print("expected", (1, 1, 1, 1), "as without jit")
print("got", repr(got)[:100])
print("DEVIATES" if "ALG_DOT_BF16_BF16_F32" in str(got) else "fixed")
