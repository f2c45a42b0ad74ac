"""torch's exporter to ONNX as a compiler: `torch.onnx.export` exports a call, ONNX Runtime runs it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from attention_conformance.backends.compilers import with_constants
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend

OPSETS: dict[str, int | None] = {"onnx": None, "onnx-23": 23}
"""The opset of each compiler; None for the exporter's default. From 23 on attention is one operator."""

NEEDED = ("onnx", "onnxscript", "onnxruntime")
"""Modules that exporting and running a model needs beside torch."""


def exporters() -> tuple[str, ...]:
    """The compilers `OPSETS`; none if a needed module is missing."""
    return tuple(OPSETS) if all(find_spec(module) for module in NEEDED) else ()


def by_onnx(backend: Backend, prepared: PreparedCall, compiler: str) -> PreparedCall:
    """The model that is exported from the first call, run by ONNX Runtime on the CPU."""

    def through(function: Callable[..., Any]) -> Callable[..., Any]:
        return _exported(function, OPSETS[compiler])

    return with_constants(through, backend.is_array, prepared)


def _exported(function: Callable[..., Any], opset: int | None) -> Callable[..., Any]:
    import torch

    class Module(torch.nn.Module):
        def forward(self, arrays: Any) -> Any:
            return function(arrays)

    sessions: list[Any] = []

    def call(arrays: Any) -> Any:
        detached = {n: a.detach() for n, a in arrays.items()}
        if not sessions:
            sessions.append(_session(Module(), detached, opset))
        names = [node.name for node in sessions[0].get_inputs()]
        inputs = dict(zip(names, (a.numpy() for a in detached.values()), strict=True))
        outputs = [torch.from_numpy(output) for output in sessions[0].run(None, inputs)]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return call


def _session(module: Any, arrays: Any, opset: int | None) -> Any:
    import onnxruntime
    import torch

    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)  # it warns of every package without operators
    try:
        with warnings.catch_warnings(action="ignore"):
            program: Any = torch.onnx.export(
                module,
                kwargs={
                    "arrays": arrays
                },  # as the last positional argument a dictionary would be kwargs
                dynamo=True,
                opset_version=opset,
                verbose=False,
            )
    finally:
        exporter.setLevel(level)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    model = program.model_proto.SerializeToString()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
