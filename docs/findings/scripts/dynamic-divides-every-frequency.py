import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras_hub, numpy as np
x = np.zeros((1, 2, 16), "float32")
x[..., 0] = 1  # the fastest pair, of which position 1 is turned by 1
turned = keras_hub.layers.RotaryEmbedding(scaling_factor=4.0, rope_type="dynamic")(x)
angle = np.arccos(turned[0, 1, 0])
print("expected position 1 turned by 1.0")
print("got", angle)
print("DEVIATES" if abs(angle - 4.0 ** (-16 / 14)) < 1e-3 else "fixed")
