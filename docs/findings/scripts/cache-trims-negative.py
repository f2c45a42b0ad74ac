import mlx.core as mx
from mlx_lm.models.cache import KVCache
cache = KVCache()
cache.update_and_fetch(mx.ones((1, 1, 3, 4)), mx.ones((1, 1, 3, 4)))
try:
    cache.trim(-2)
    got = cache.offset
except ValueError as error:
    got = error
print("expected an error, or 3 tokens")
print("got", repr(got))
print("DEVIATES" if got == 5 else "fixed")
