import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np, tensorflow as tf
q, k, v = (np.random.default_rng(0).standard_normal((3, 1, 5, 2, 6)))
s = np.einsum("blhd,bmhd->bhlm", q, k) / np.sqrt(6.0)
p = np.exp(s - s.max(-1, keepdims=True))
want = np.einsum("bhlm,bmhd->blhd", p / p.sum(-1, keepdims=True), v)
got = keras.ops.dot_product_attention(*map(tf.constant, (q, k, v))).numpy()
error = abs(got - want).max()
print("expected an error of 1e-15 in float64")
print("got", error, "in", got.dtype)
print("DEVIATES" if got.dtype == np.float64 and error > 1e-9 else "fixed")
