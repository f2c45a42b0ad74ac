"""transformers on torch: the rotary position embeddings of its models, made from configurations.

No model is downloaded. transformers is imported when the backend is made.
"""

from __future__ import annotations

from backends._transformers.backend import TransformersBackend

__all__ = ["TransformersBackend"]
