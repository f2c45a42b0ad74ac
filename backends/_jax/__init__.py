"""JAX: textbook attention, `jax.nn.dot_product_attention`, textbook layers and Flax's.

jax is imported when the backend is created.
"""
