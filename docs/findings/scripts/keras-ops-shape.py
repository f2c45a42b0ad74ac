import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
q, k, v = keras.Input((5, 2, 8)), keras.Input((9, 2, 8)), keras.Input((9, 2, 6))
output = keras.ops.dot_product_attention(q, k, v)
model = keras.Model([q, k, v], output)
answer = model([np.ones((1, *x.shape[1:])) for x in (q, k, v)])
print("expected", (None, 5, 2, 6))
print("got", output.shape)
print("DEVIATES" if output.shape == (None, 5, 2, 8) and answer.shape == (1, 5, 2, 6) else "fixed")
