"""Compile a prepared call with `torch.compile` or `torch.export`, or export it to ONNX."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from types import FunctionType
from typing import Any

from attention_conformance.backends.compilers import over_batch, with_constants
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend

_COPIES = count()


class TorchCompilers(Backend):
    """torch's compilers: "vmap", "export", and the backends of `torch.compile`."""

    ambient = {"vmap": "mapped"}
    one_graph = True
    """True if `torch.compile` must make one graph of a call."""

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        import torch

        if prepared.ahead is not None:
            # The block mask is made before compilation, as in torch's documentation: to compile it takes
            # a second. If it cannot be made, the call raises.
            with suppress(Exception):
                prepared.ahead()
        if compiler == "vmap":
            is_array = self.is_array
            return over_batch(torch.func.vmap, torch.movedim, is_array, prepared, batch)
        if compiler == "export":
            return exported(self, prepared, by_torch_export)
        return by_torch_compile(self, prepared, compiler, self.one_graph)

    def recomputed(
        self, prepared: PreparedCall, rate: float, compiler: str
    ) -> dict[str, PreparedCall]:
        """Returns calls with `torch.utils.checkpoint`, and compiled calls that keep no or all
        activations. In compiled modes "vmap" and "export" there are none."""
        from torch.utils.checkpoint import checkpoint

        dropping = replace(prepared, arguments=prepared.arguments | prepared.dropping(rate))
        function = dropping.function

        def checkpointed(**arguments: Any) -> Any:
            return checkpoint(function, use_reentrant=False, **arguments)

        with_checkpoint = replace(dropping, function=checkpointed)
        if not compiler:
            return {"checkpoint": with_checkpoint}
        if compiler in ("vmap", "export"):
            return {}
        functorch: Any = import_module("torch._functorch.config")

        def compiled(call: PreparedCall) -> PreparedCall:
            return by_torch_compile(self, call, compiler, self.one_graph)

        least_memory = partial(functorch.patch, activation_memory_budget=0.0)
        return {
            "all activations kept": compiled(dropping),
            "over checkpoint": compiled(with_checkpoint),
            "activation_memory_budget=0": replace(compiled(dropping), within=least_memory),
        }

    def dropout(self, rate: float) -> Callable[[Any], Any]:
        import torch

        return partial(torch.nn.functional.dropout, p=rate)

    def raised_inside(self, error: BaseException) -> BaseException:
        """Returns the function's own error if dynamo reports one that it observed in tracing; otherwise
        `error`."""
        dynamo = sys.modules.get("torch._dynamo.exc")  # absent before the first compilation
        kinds = dynamo.observed_exception_map if dynamo else {}
        cause = error.__cause__
        kind = next((kind for kind, observed in kinds.items() if type(cause) is observed), None)
        return error if kind is None else kind(str(cause))


def by_torch_compile(
    backend: Backend, prepared: PreparedCall, compiler: str, one_graph: bool = True
) -> PreparedCall:
    """Returns the call compiled by `torch.compile` with fixed shapes. Differentiated calls are compiled
    separately.

    With `one_graph` the call raises unless it makes one graph. Without, dynamo is reset, so that earlier
    prepared calls are compiled again.
    """
    import torch
    import torch._dynamo
    import torch._functorch.config as functorch

    if not one_graph:
        torch._dynamo.reset()
    # The cache's key does not contain the forced kernel (pytorch#185449): a hit could run another one.
    functorch.enable_autograd_cache = False

    def compile_one(function: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(copied(function), backend=compiler, dynamic=False, fullgraph=one_graph)

    def compile_both(function: Callable[..., Any]) -> Callable[..., Any]:
        undifferentiated, differentiated = compile_one(function), compile_one(function)

        def call(arrays: Any) -> Any:
            requires_grad = any(a.requires_grad for a in arrays.values())
            return (differentiated if requires_grad else undifferentiated)(arrays)

        return call

    return with_constants(compile_both, backend.is_array, prepared)


def copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a copy of a Python function with its own code object.

    Dynamo keeps at most eight programs per code object, and all closures from one line of source share a
    code object. Raises TypeError if the function is not written in Python.
    """
    if not isinstance(function, FunctionType):
        raise TypeError(f"expected a function written in Python, got {function!r}")
    code = function.__code__.replace(co_name=f"program_{next(_COPIES)}")
    copy = FunctionType(
        code, function.__globals__, code.co_name, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def exported(
    backend: Backend, prepared: PreparedCall, export: Callable[[Any, Any], Callable[..., Any]]
) -> PreparedCall:
    """Returns the call through the program that `export(module, arrays)` makes at the first call."""

    def compile_by_export(function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` of the dictionary of arrays, exported at the first call. It runs on detached
        arrays."""
        import torch

        class Module(torch.nn.Module):
            def forward(self, arrays: Any) -> Any:
                return function(arrays)

        programs: list[Callable[..., Any]] = []

        def call(arrays: Any) -> Any:
            detached = {n: a.detach() for n, a in arrays.items()}
            if not programs:
                programs.append(export(Module(), detached))
            return programs[0](detached)

        return call

    return with_constants(compile_by_export, backend.is_array, prepared)


def by_torch_export(module: Any, arrays: Any) -> Callable[..., Any]:
    """Returns the program that `torch.export` makes of a module for example arrays."""
    import torch

    program: Callable[..., Any] = torch.export.export(module, (arrays,)).module()
    return program


OPSETS: dict[str, int | None] = {"onnx": None, "onnx-23": 23}
"""The opset of each exporter to ONNX; None is the default. From 23 on attention is one operator."""

NEEDED = ("onnx", "onnxscript", "onnxruntime")
"""Modules besides torch that are needed to export to ONNX and to run the model."""


def exporters() -> tuple[str, ...]:
    """Returns the names of the exporters to ONNX (`OPSETS`); () if a module of `NEEDED` is not
    installed."""
    return tuple(OPSETS) if all(find_spec(module) for module in NEEDED) else ()


def by_onnx(opset: int | None, module: Any, arrays: Any) -> Callable[..., Any]:
    """Returns a function that runs the model of `torch.onnx.export` in ONNX Runtime on the CPU."""
    import onnxruntime
    import torch

    exporter = logging.getLogger("torch.onnx")
    level_before = exporter.level
    exporter.setLevel(logging.ERROR)  # it warns of every package without operators
    try:
        with warnings.catch_warnings(action="ignore"):
            # As the last positional argument a dictionary would be keywords.
            program: Any = torch.onnx.export(
                module, kwargs={"arrays": arrays}, dynamo=True, opset_version=opset, verbose=False
            )
    finally:
        exporter.setLevel(level_before)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4
    model = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [node.name for node in session.get_inputs()]

    def run(arrays: Any) -> Any:
        inputs = dict(zip(names, (a.numpy() for a in arrays.values()), strict=True))
        outputs = [torch.from_numpy(output) for output in session.run(None, inputs)]
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return run
