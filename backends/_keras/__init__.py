"""Keras on TensorFlow, torch, JAX and NumPy: `keras.ops.dot_product_attention`, and Keras' layers.

An engine is the framework that Keras runs on. `ops` and the modules of layers serve every engine. The
backends are `on_torch`, `on_jax` and `on_numpy`; on TensorFlow Keras belongs to the backend `tf`.
"""
