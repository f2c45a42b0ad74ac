import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, torch
x = torch.ones(2, 5, 8, dtype=torch.float64)
got = keras.layers.Attention(dtype="float64")([x, x]).dtype
print("expected", torch.float64)
print("got", repr(got))
print("DEVIATES" if got == torch.float32 else "fixed")
