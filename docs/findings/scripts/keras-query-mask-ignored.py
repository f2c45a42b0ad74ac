import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
valid = np.ones((2, 5), bool)
valid[:, 3:] = False
layer = keras.layers.MultiHeadAttention(2, 4)
plain = layer(x, x, return_attention_scores=True)[1]
given = layer(x, x, query_mask=valid, return_attention_scores=True)[1]
same = bool((plain.numpy() == given.numpy()).all())
print("expected weights of rows 3 and 4 that query_mask changes")
print("got", "the weights without query_mask" if same else "other weights")
print("DEVIATES" if same else "fixed")
