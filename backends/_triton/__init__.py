"""Triton: kernels of people and a control, with torch's arrays.

On a CPU kernels run in Triton's interpreter. triton and torch are imported when the backend is made.
"""

from __future__ import annotations

from attention_conformance.backends._triton.backend import TritonBackend

__all__ = ["TritonBackend"]
