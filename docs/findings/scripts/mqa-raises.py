import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, tensorflow as tf
q, kv = tf.random.normal((1, 5, 4, 8)), tf.random.normal((1, 7, 1, 8))
try:
    got = tuple(keras.ops.dot_product_attention(q, kv, kv).shape)
except tf.errors.InvalidArgumentError as error:
    got = error
print("expected", (1, 5, 4, 8))
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, tf.errors.InvalidArgumentError) else "fixed")
