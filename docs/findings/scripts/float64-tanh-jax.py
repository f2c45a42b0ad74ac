import os
os.environ["KERAS_BACKEND"] = "jax"
import jax, keras
jax.config.update("jax_enable_x64", True)
x = jax.numpy.ones((2, 5, 8), "float64")
layer = keras.layers.AdditiveAttention(use_scale=False, dtype="float64")
weights = layer([x, x], return_attention_scores=True)[1]
print("expected float64")
print("got", weights.dtype)
print("DEVIATES" if x.dtype == "float64" and weights.dtype == "float32" else "fixed")
