import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 5, 8)).astype("float32")
valid = np.ones((2, 5), bool)
valid[1, 3:] = False
mask = rng.random((2, 2, 5, 5)) < 0.7
mask[..., 0] = True
layer = keras.layers.MultiHeadAttention(2, 4)
weights = layer(x, x, value_mask=valid, attention_mask=mask, return_attention_scores=True)[1]
allowed = mask & valid[:, None, None]
masked, seen = (weights.numpy()[~allowed] > 0).sum(), (weights.numpy()[allowed] == 0).sum()
print("expected 0 masked keys with a weight, 0 unmasked keys without")
print("got", masked, "and", seen)
print("DEVIATES" if masked > 0 and seen > 0 else "fixed")
