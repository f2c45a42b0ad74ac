"""Self-attention of one head: `references.multi_head` with one head and without output projection."""

from __future__ import annotations

from attention_conformance.references.multi_head import reference

__all__ = ["reference"]
