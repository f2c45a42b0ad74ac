import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras_hub, numpy as np
layer = keras_hub.layers.RotaryEmbedding(dtype="float64")
x = np.ones((1, 1, 1, 16))
turned = np.asarray(layer(x, start_index=4097))[0, 0, 0]
angle = 4097 * 10000.0 ** (-np.arange(0, 16, 2) / 16)
error = abs(turned[:8] - (np.cos(angle) - np.sin(angle))).max()
print("expected an error of 1e-12 in float64")
print("got", error, "in", turned.dtype)
print("DEVIATES" if error > 1e-6 else "fixed")
