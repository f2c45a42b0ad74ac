import mlx.core as mx
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import QuantizedKVCache
mx.set_default_device(mx.cpu)
cache, query = QuantizedKVCache(), mx.ones((1, 1, 1, 64))
key, value = cache.update_and_fetch(query, query)
scaled_dot_product_attention(query, key, value, cache, 0.125, None)
print("expected a query that is left as it was, 1.0")
print("got", query[0, 0, 0, 0].item())
print("DEVIATES" if query[0, 0, 0, 0].item() == 0.125 else "fixed")
