"""ONNX: the standard's operators in ONNX Runtime, and in the standard's own reference evaluator.

A call becomes a model, made in memory. Models are run, and not differentiated.
"""

from __future__ import annotations

from backends._onnx.reference import OnnxReferenceBackend
from backends._onnx.runtime import OnnxRuntimeBackend

__all__ = ["OnnxReferenceBackend", "OnnxRuntimeBackend"]
