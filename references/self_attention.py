"""One head of self-attention: multi-head attention with one head and without an output projection.

Its arrays, outputs, gradients and tangents are those of `references.multi_head`.
"""

from __future__ import annotations

from references.multi_head import reference

__all__ = ["reference"]
