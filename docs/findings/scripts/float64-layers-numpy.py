import os
os.environ["KERAS_BACKEND"] = "numpy"
import keras, numpy as np
x = np.ones((2, 5, 8))
one = keras.layers.Attention(dtype="float64")([x, x]).dtype
two = keras.layers.MultiHeadAttention(2, 4, dtype="float64")(x, x).dtype
print("expected float64 float64")
print("got", one, two)
print("DEVIATES" if one == two == "float32" else "fixed")
