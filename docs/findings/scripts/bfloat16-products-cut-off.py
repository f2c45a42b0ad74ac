import numpy as np
import tensorflow as tf
weights = tf.fill((17, 16), tf.constant(1 / 16, tf.bfloat16))
column = np.where(np.arange(16) % 4 == 0, 1.0, 1.0078125)[:, None].repeat(8, 1)
mean = tf.cast(tf.matmul(weights, tf.constant(column, tf.bfloat16)), tf.float32)
got = mean.numpy().max()
flags = open("/proc/cpuinfo").read().split()
print("expected the mean rounded to nearest, 1.0078125")
print("got", repr(got))
print("not applicable here" if "avx512_bf16" in flags else "DEVIATES" if got < 1.0078125 else "fixed")
