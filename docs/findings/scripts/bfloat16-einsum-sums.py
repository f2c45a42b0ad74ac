import numpy as np
import tensorflow as tf
rng = np.random.default_rng(0)
q, k = (tf.constant(rng.standard_normal((1, 33, 2, 600)), tf.bfloat16) for _ in range(2))
got = tf.cast(tf.einsum("btnh,bsnh->bnts", q, k), tf.float64).numpy()
exact = [tf.cast(x, tf.float64).numpy() for x in (q, k)]
want = np.einsum("btnh,bsnh->bnts", *exact)
size = np.einsum("btnh,bsnh->bnts", *map(np.abs, exact))
error = np.max(np.abs(got - want) / size)
flags = open("/proc/cpuinfo").read().split()
print("expected an error, relative to the sum of magnitudes, of at most", 2**-8)
print("got", error)
print("not applicable here" if "avx512_bf16" in flags else "DEVIATES" if error > 2**-7 else "fixed")
