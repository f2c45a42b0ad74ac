import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
kind = keras.layers.GroupQueryAttention
want = kind(4, 2, 1)(np.ones((2, 5, 8), "float32"), np.ones((2, 9, 10), "float32")).shape
try:
    got = kind(4, 2, 1)(keras.Input((5, 8)), keras.Input((9, 10))).shape
except ValueError as error:
    got = error
print("expected", (None, 5, 8), "as for arrays", want)
print("got", repr(got)[:100])
print("DEVIATES" if want == (2, 5, 8) and isinstance(got, ValueError) else "fixed")
