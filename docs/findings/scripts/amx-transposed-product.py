import numpy as np, tensorflow as tf
rng = np.random.default_rng(0)
a, b = rng.integers(-2, 3, (1, 1, 5, 3)), rng.integers(-2, 3, (1, 1, 55, 3))
got = tf.matmul(tf.cast(a, tf.bfloat16), tf.cast(b, tf.bfloat16), transpose_b=True)
want = a @ b.swapaxes(-1, -2)  # whole numbers up to 12, exact in bfloat16
wrong = (got.numpy().astype(float) != want).sum()
flags = open("/proc/cpuinfo").read().split()
print("expected 0 wrong elements of", want.size)
print("got", wrong)
print("not applicable here" if "amx_bf16" not in flags else "DEVIATES" if wrong > 0 else "fixed")
