import os
os.environ["KERAS_BACKEND"] = "numpy"
import keras, ml_dtypes, numpy as np
x, valid = np.ones((2, 5, 8), ml_dtypes.bfloat16), np.ones((2, 5), bool)
layer = keras.layers.Attention(dtype="bfloat16")
plain, masked = layer([x, x]).dtype, layer([x, x], mask=[None, valid]).dtype
print("expected bfloat16, with a mask and without")
print("got", masked, "with a mask,", plain, "without")
print("DEVIATES" if plain == "bfloat16" and masked == "float32" else "fixed")
