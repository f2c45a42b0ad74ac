import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import numpy as np, keras_hub
layer, x = keras_hub.layers.CachedMultiHeadAttention(1, 4), np.ones((1, 3, 4), "float32")
def written(tokens, index):
    _, cache = layer(x[:, :tokens], x[:, :tokens], cache=np.full((1, 2, 5, 1, 4), 9.0), cache_update_index=index)
    return [int(n) for n in np.flatnonzero(np.asarray(cache)[0, 0, :, 0, 0] != 9)]
print("expected errors")
print("got", written(1, 5), written(3, 3), written(1, -1))
print("DEVIATES" if (written(1, 5), written(3, 3), written(1, -1)) == ([4], [2, 3, 4], [0]) else "fixed")
