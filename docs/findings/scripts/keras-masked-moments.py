import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
x = np.random.default_rng(0).standard_normal((4, 3, 8)) + 1.0
layer = keras.layers.BatchNormalization(dtype="float64")
plain = layer(x, training=True).numpy()
masked = layer(x, training=True, mask=np.ones((4, 3), bool)).numpy()
error = np.abs(plain - masked).max()
print("expected a difference of 1e-15 in float64")
print("got", error)
print("DEVIATES" if error > 1e-9 else "fixed")
