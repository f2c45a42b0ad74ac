import mlx.core as mx
from mlx_lm.models.cache import BatchRotatingKVCache
cache = BatchRotatingKVCache(max_size=3, left_padding=[4])
def seen(tokens):  # the positions that the rows of new tokens see
    positions = mx.arange(cache._offset, cache._offset + tokens, dtype=mx.float32)[None, None, :, None]
    mask = cache.make_mask(tokens)
    keys, _ = cache.update_and_fetch(positions, positions)
    return [[int(k) for k, m in zip(keys.flatten().tolist(), row) if m] for row in mask[0, 0].tolist()]
seen(4)  # padding alone
got = [seen(1), seen(2)]
want = [[[4]], [[4, 5], [4, 5, 6]]]
print("expected", want)
print("got", repr(got))
print("DEVIATES" if got[1] != want[1] else "fixed")
