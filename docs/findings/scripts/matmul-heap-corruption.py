import tensorflow as tf
print("expected 50 products")
for _ in range(50):
    a = tf.cast(tf.random.normal((2, 1, 9, 16)), tf.bfloat16)
    w = tf.cast(tf.random.normal((16, 2)), tf.bfloat16)
    tf.matmul(a, w)  # may end the process
print("got 50 products")
flags = open("/proc/cpuinfo").read().split()
print("not applicable here" if "avx512f" in flags and "avx512_bf16" not in flags else "fixed")
