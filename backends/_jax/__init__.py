"""JAX: textbook attention, `jax.nn.dot_product_attention`, textbook layers and Flax's.

jax is imported when the backend is created.
"""

from __future__ import annotations

from attention_conformance.backends._jax.backend import JaxBackend

__all__ = ["JaxBackend"]
