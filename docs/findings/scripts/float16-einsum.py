import numpy as np, tensorflow as tf
a, b = np.random.default_rng(0).standard_normal((2, 64, 257)).astype(np.float16)
got = tf.einsum("ik,jk->ij", a, b).numpy().astype(float)
want = a.astype(float) @ b.astype(float).T
once = (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16)
error, least = abs(got - want).max(), abs(once - want).max()
flags = open("/proc/cpuinfo").read().split()
print("expected an error as that of sums in float32,", least)
print("got", error)
print("not applicable here" if "avx512_fp16" in flags else "DEVIATES" if error > 4 * least else "fixed")
