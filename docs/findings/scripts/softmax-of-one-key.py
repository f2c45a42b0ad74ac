import tensorflow as tf
weights = tf.nn.softmax(tf.zeros((17, 1))).numpy()
flags = open("/proc/cpuinfo").read().split()
print("expected weights of 1")
print("got", weights.min())
print("not applicable here" if "avx512_bf16" in flags else "DEVIATES" if weights.min() < 1 else "fixed")
