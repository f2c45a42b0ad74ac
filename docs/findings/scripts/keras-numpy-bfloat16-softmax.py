import os
os.environ["KERAS_BACKEND"] = "numpy"
import keras, ml_dtypes, numpy as np
weights = keras.ops.softmax(np.zeros((1, 1024), ml_dtypes.bfloat16))
print("expected weights that sum to 1")
print("got", weights.astype("float32").sum())
print("DEVIATES" if weights.astype("float32").sum() == 4 else "fixed")
