import jax
q, k, v = (jax.random.normal(jax.random.key(i), (1, 5, 2, 8)) for i in range(3))
try:
    got = jax.nn.dot_product_attention(q, k, v, local_window_size=(-2, 0))
except Exception as error:
    got = error
wrong = not isinstance(got, Exception) and abs(got - v.mean(1, keepdims=True)).max() < 1e-6
print("expected an error")
print("got", "the mean of all values" if wrong else repr(got))
print("DEVIATES" if wrong else "fixed")
