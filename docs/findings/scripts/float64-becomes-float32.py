import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, torch
q = torch.ones(1, 5, 2, 8, dtype=torch.float64)
got = keras.ops.dot_product_attention(q, q, q).dtype
print("expected", torch.float64)
print("got", repr(got))
print("DEVIATES" if got == torch.float32 else "fixed")
