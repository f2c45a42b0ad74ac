import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache
cache = BatchKVCache(left_padding=[0, 0])
keys = mx.array([1.0, 2.0])[:, None, None, None] * mx.ones((2, 1, 3, 4))
cache.update_and_fetch(keys, keys)
try:
    cache.filter(mx.array([-1, 0]))
    got = cache.keys[:, 0, 0, 0].tolist()
except (IndexError, ValueError) as error:
    got = error
print("expected an error: there is no sample -1")
print("got", repr(got))
print("DEVIATES" if got == [2.0, 1.0] else "fixed")
