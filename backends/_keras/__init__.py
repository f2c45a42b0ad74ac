"""Keras on every engine it runs on: `keras.ops.dot_product_attention`, and its layers.

`ops` and `layers` are those of any engine; `on_torch`, `on_jax` and `on_numpy` are backends of their
own, which stand on the engines of PyTorch's, JAX's and NumPy's packages. On TensorFlow, which Keras comes
with, they are implementations of the backend `tf`.
"""
