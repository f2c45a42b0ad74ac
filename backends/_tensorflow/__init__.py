"""TensorFlow: textbook attention and layers, and Keras on the TensorFlow engine.

tensorflow and keras are imported when the backend is created.
"""

from __future__ import annotations

from attention_conformance.backends._tensorflow.backend import TensorflowBackend

__all__ = ["TensorflowBackend"]
