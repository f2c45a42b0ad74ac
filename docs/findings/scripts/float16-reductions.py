import tensorflow as tf
x = tf.ones((8, 4096, 4), tf.float16)
narrow, brain = (float(tf.reduce_sum(tf.cast(x, kind), 1)[0, 0]) for kind in (tf.float16, tf.bfloat16))
print("expected", 4096.0, "as in bfloat16:", brain)
print("got", narrow)
print("DEVIATES" if narrow == 2048.0 and brain == 4096.0 else "fixed")
