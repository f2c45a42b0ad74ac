import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
from keras import layers
memory, x = keras.Input((5, 8)), keras.Input((3, 8))
masked = layers.Masking()(memory)
one, two = layers.MultiHeadAttention(2, 4), layers.MultiHeadAttention(2, 4)
model = keras.Model([memory, x], [one(x, masked), two(x, masked)])
two.set_weights(one.get_weights())
rng = np.random.default_rng(0)
m = rng.standard_normal((2, 5, 8)).astype("float32")
m[1, 3:] = 0  # padding
a, b = model.predict_on_batch([m, rng.standard_normal((2, 3, 8)).astype("float32")])
difference = abs(a - b).max((1, 2))  # of two layers with the same weights and inputs
print("expected differences of 0 between equal layers, for both samples")
print("got", difference)
print("DEVIATES" if difference[0] == 0 and difference[1] > 0.01 else "fixed")
