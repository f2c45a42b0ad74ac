"""transformers on torch: attention functions and rotary embeddings of its models.

Modules are made from configurations, without downloads. transformers is imported when the backend is
created.
"""

from __future__ import annotations

from attention_conformance.backends._transformers.backend import TransformersBackend

__all__ = ["TransformersBackend"]
