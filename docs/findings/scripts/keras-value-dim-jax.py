import os
os.environ["KERAS_BACKEND"] = "jax"
import keras
x = keras.ops.ones((2, 5, 8))
layer = keras.layers.MultiHeadAttention(2, 4, value_dim=3)
want = layer(x, x, return_attention_scores=True)[0].shape
try:
    got = layer(x, x).shape
except TypeError as error:
    got = error
print("expected", want)
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, TypeError) else "fixed")
