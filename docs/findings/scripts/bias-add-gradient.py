import tensorflow as tf
bias, x = tf.zeros(8, tf.bfloat16), tf.zeros((4096, 8), tf.bfloat16)
cotangent = tf.fill((4096, 8), tf.constant(0.0101, tf.bfloat16))
with tf.GradientTape() as tape:
    tape.watch(bias)
    out = tf.nn.bias_add(x, bias)
got = tape.gradient(out, bias, output_gradients=cotangent)
want = tf.reduce_sum(cotangent, 0)  # summed in float32
print("expected", float(want[0]), "to 0.4 per cent")
print("got", float(got[0]))
print("DEVIATES" if abs(float(got[0]) / float(want[0]) - 1) > 0.01 else "fixed")
