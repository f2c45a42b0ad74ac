"""Keras on every engine it runs on: `keras.ops.dot_product_attention`, and its layers.

`ops` and `layers` are those of any engine; `on_torch` and `on_jax` are backends of their own, which
stand on the engines of PyTorch's and JAX's packages. On TensorFlow, which Keras comes with, they are
implementations of the backend `tf`.
"""
