import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, keras_hub, numpy as np
x = np.random.default_rng(0).standard_normal((2, 5, 8)).astype("float32")
def moved(kind, **flags):
    plain, other = (
        kind(2, 4, kernel_initializer=keras.initializers.GlorotUniform(seed=0), **f)(x, x) for f in ({}, flags)
    )
    return float(abs(plain - other).numpy().max())
layers = keras.layers.MultiHeadAttention, keras_hub.layers.CachedMultiHeadAttention
changes = [[moved(kind, **flags) for flags in ({"use_gate": True}, {"sliding_window": 1})] for kind in layers]
print("expected both arguments change the output, as in MultiHeadAttention, by", changes[0])
print("got", changes[1])
print("DEVIATES" if min(changes[0]) > 0.1 and changes[1] == [0, 0] else "fixed")
