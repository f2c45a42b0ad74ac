import tensorflow as tf
print("expected 50 products")
for _ in range(50):
    a = tf.cast(tf.random.normal((2, 1, 9, 16)), tf.bfloat16)
    w = tf.cast(tf.random.normal((16, 2)), tf.bfloat16)
    tf.matmul(a, w)  # may end the process
print("got 50 products")
flags = open("/proc/cpuinfo").read().split()
print("fixed" if "avx512_bf16" in flags else "not applicable here")
