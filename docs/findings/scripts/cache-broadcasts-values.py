import mlx.core as mx
from mlx_lm.models.cache import KVCache
try:
    got = KVCache().update_and_fetch(mx.zeros((1, 2, 3, 4)), mx.zeros((1, 1, 3, 4)))[1].shape
except ValueError as error:
    got = error
print("expected an error: 2 heads of keys, 1 of values")
print("got", repr(got))
print("DEVIATES" if got == (1, 2, 3, 4) else "fixed")
