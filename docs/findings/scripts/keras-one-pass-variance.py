import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np
x = np.random.default_rng(0).standard_normal((96, 8)).astype("float32") + 4096
layer = keras.layers.BatchNormalization()
got = keras.ops.convert_to_numpy(layer(x, training=True))
wide = x.astype("float64")
want = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + layer.epsilon)
print("expected the largest", np.abs(want).max())
print("got", np.abs(got).max())
print("DEVIATES" if not np.abs(got - want).max() < 0.1 else "fixed")
