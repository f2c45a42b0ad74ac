"""ONNX: the standard's operators in ONNX Runtime and in the standard's reference evaluator.

A call becomes a model in memory. Models have no gradients.
"""

from __future__ import annotations

from attention_conformance.backends._onnx.runtime import OnnxReferenceBackend, OnnxRuntimeBackend

__all__ = ["OnnxReferenceBackend", "OnnxRuntimeBackend"]
