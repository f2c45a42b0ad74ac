import os
os.environ["KERAS_BACKEND"] = "numpy"
import keras, numpy as np
query, key = np.ones((1, 5, 4, 8), "float32"), np.ones((1, 7, 2, 8), "float32")
try:
    got = keras.ops.dot_product_attention(query, key, key).shape
except ValueError as error:
    got = error
print("expected", (1, 5, 4, 8))
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, ValueError) else "fixed")
