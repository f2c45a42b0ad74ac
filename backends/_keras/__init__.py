"""Keras on all its engines: `keras.ops.dot_product_attention`, and Keras' layers.

`ops` and `layers` serve every engine. `on_torch`, `on_jax` and `on_numpy` are backends, built on the
engines of `_torch`, `_jax` and `_numpy`. On TensorFlow Keras belongs to the backend `tf`.
"""
