"""transformers on torch: attention functions and rotary embeddings of its models.

Modules are made from configurations: no model is downloaded. transformers is imported when the backend
is made.
"""

from __future__ import annotations

from backends._transformers.backend import TransformersBackend

__all__ = ["TransformersBackend"]
