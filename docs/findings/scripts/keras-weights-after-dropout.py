import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
x = np.random.default_rng(0).standard_normal((2, 7, 8)).astype("float32")
options = dict(training=True, return_attention_scores=True)
before = keras.layers.MultiHeadAttention(2, 4, dropout=0.5)(x, x, **options)[1]
after = keras.layers.Attention(dropout=0.5)([x, x], **options)[1]
errors = [abs(weights.numpy().sum(-1) - 1).max() for weights in (before, after)]
print("expected the same kind of weights from both layers: rows that sum to 1, or rows after dropout")
print("got rows that differ from 1 by", *errors)
print("DEVIATES" if errors[0] < 0.001 < errors[1] else "fixed")
