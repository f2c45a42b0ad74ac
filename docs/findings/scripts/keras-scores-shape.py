import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras, numpy as np
x, memory = keras.Input((5, 8)), keras.Input((9, 8))
layer = keras.layers.MultiHeadAttention(2, 4)
output, scores = layer(x, memory, return_attention_scores=True)
model = keras.Model([x, memory], scores)
answer = model([np.ones((1, 5, 8)), np.ones((1, 9, 8))])
print("expected", (None, 2, 5, 9))
print("got", scores.shape)
print("DEVIATES" if scores.shape == (None, 2, 5, 5) and answer.shape == (1, 2, 5, 9) else "fixed")
