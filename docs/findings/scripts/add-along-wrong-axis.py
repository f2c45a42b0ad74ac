import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
x, y = np.zeros((2, 3, 3, 5), "float32"), np.array([[1], [2], [3]], "float32")
got = keras.ops.convert_to_numpy(keras.ops.add(x, y))
wide = keras.ops.add(np.zeros((2, 3, 1), "float32"), np.ones((1, 3), "float32"))
print("expected", (x + y)[0, 0, :, 0], "along the third axis, and the shape (2, 3, 3)")
print("got", got[0, 0, :, 0], "and", tuple(wide.shape))
print("DEVIATES" if (got[0, 0] == 1).all() and np.array_equal(got[0, :, 0, 0], [1, 2, 3]) and wide.shape == (2, 3, 1) else "fixed")
