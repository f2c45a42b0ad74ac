import os
os.environ["KERAS_BACKEND"] = "tensorflow"
import keras_hub, numpy as np
x = np.ones((1, 9, 1, 8), "float32")
plain, misspelt = (
    keras_hub.layers.RotaryEmbedding(**more)(x) for more in ({}, {"rope_type": "lineal", "scaling_factor": 4.0})
)
print("expected an error")
print("got", float(abs(plain - misspelt).numpy().max()))
print("DEVIATES" if (plain == misspelt).numpy().all() else "fixed")
