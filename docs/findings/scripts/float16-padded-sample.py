import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, torch
x, valid = torch.ones(2, 5, 8, dtype=torch.float16), torch.zeros(2, 5, dtype=torch.bool)
out = keras.layers.Attention(dtype="float16")([x, x], mask=[None, valid])
print("expected finite numbers, as in float32")
print("got", out[0, 0, :3].tolist())
print("DEVIATES" if out.isnan().all() else "fixed")
