import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, tensorflow as tf
x = tf.ones((1, 2))
try:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = keras.ops.slice_update(tf.zeros((3, 2)), [0, 0], x)
    got = tape.gradient(y, x).numpy()
except LookupError as error:
    got = error
print("expected a gradient of ones")
print("got", repr(got)[:100])
print("DEVIATES" if isinstance(got, LookupError) else "fixed")
