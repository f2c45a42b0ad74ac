"""torch's measurements of time and memory, and its names of the kernels that ran."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

from attention_conformance.backends._torch.autograd import DERIVED_BY, step_by_autograd
from attention_conformance.backends.engine import Step
from attention_conformance.backends.forbidden import replace_function
from attention_conformance.backends.prepared import ForbiddenCall, PreparedCall, set_to
from attention_conformance.backends.protocol import Backend

KERNELS = {
    "aten::scaled_dot_product_attention": (
        r"aten::_scaled_dot_product_\w+", r"aten::_(flash|efficient|cudnn)_attention_\w+",
        r"aten::_(native|triton)_multi_head_attention", "aten::_triton_scaled_dot_attention",
        "aten::_transformer_encoder_layer_fwd",
    )
}  # fmt: skip
"""By public operator: patterns of the private operators by which code may call it, or its kernels in a
layer."""


FLEX = "torch.nn.attention.flex_attention.flex_attention"

PRIVATE_FUNCTIONS = {FLEX: ("torch._higher_order_ops.flex_attention.FlexAttentionHOP.__call__",)}
"""By public function: private functions, written in Python, by which code may call it."""

SWITCHES = (
    "_enable_record_function", "_enable_profiler", "_disable_profiler", "_enable_profiler_legacy",
    "_disable_profiler_legacy", "_clear_callbacks", "_toggle_collection_dynamic",
)  # fmt: skip
"""Functions that switch torch's profilers on or off."""


class _ThreadState(threading.local):
    """`may_switch`: True while this thread switches a profiler for `TorchProfiler`."""

    may_switch = False


THIS_THREAD = _ThreadState()


def switching_allowed() -> AbstractContextManager[None]:
    """A context in which this thread may call the functions of `guarded_switch`."""
    return set_to(True, lambda: THIS_THREAD.may_switch, partial(setattr, THIS_THREAD, "may_switch"))


@contextmanager
def profiled(**settings: Any) -> Iterator[Any]:
    """A context in which torch's profiler records calls on the CPU. Its value is the profiler."""
    import torch

    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **settings)
    with switching_allowed():
        profile.__enter__()
    try:
        yield profile
    finally:
        with switching_allowed():
            profile.__exit__(None, None, None)


def guarded_switch(name: str, switch: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function of `SWITCHES`, changed to raise ForbiddenCall outside of `switching_allowed`."""

    # Without `wraps`: its attribute `__wrapped__` would be the unguarded switch.
    def call(*arguments: Any) -> Any:
        if not THIS_THREAD.may_switch:
            raise ForbiddenCall(f"the function calls {name}, which hides its calls")
        return switch(*arguments)

    return call


@cache
def guard_switches() -> None:
    """Replace the functions of `SWITCHES`, once."""
    import torch

    for name in SWITCHES:
        if switch := getattr(torch._C._autograd, name, None):
            replace_function(
                f"torch._C._autograd.{name}", guarded_switch(f"torch.autograd.{name}", switch)
            )


class TorchProfiler(Backend):
    """torch's own profiler, and the clock and the allocator of a GPU."""

    has_threads = True
    attention_functions = (
        "torch.nn.functional.scaled_dot_product_attention", FLEX,
        "torch.nn.functional.multi_head_attention_forward",
    )  # fmt: skip

    _synchronize: Callable[[], None]
    _is_profiled: Callable[[], bool]

    def threads(self, count: int) -> AbstractContextManager[None]:
        import torch

        return set_to(count, torch.get_num_threads, torch.set_num_threads)

    def kernels(self, prepared: PreparedCall) -> str:
        """Returns the fused attention kernels that torch's profiler sees, or else the matrix products."""
        with profiled() as profile:
            prepared()
        names = {event.key.removeprefix("aten::") for event in profile.key_averages()}
        fused = sorted(n for n in names if re.match(r"_scaled_dot_product_\w*(attention|math)", n))
        products = sorted(n for n in names if n in ("bmm", "baddbmm", "matmul"))
        return ", ".join(fused or products) or "no attention kernel and no matrix product"

    def operator_pattern(self, function: Any) -> re.Pattern[str] | None:
        """Returns the pattern for a public function of torch's C++ code, or for one of `torch.ops`; None
        for others."""
        import torch

        name = getattr(function, "_qualified_op_name", "")
        if isinstance(function, BuiltinFunctionType | MethodDescriptorType):
            name = (
                f"aten::{function.__name__}" if hasattr(torch.ops.aten, function.__name__) else ""
            )
        if not name:
            return None
        return re.compile("|".join([re.escape(name), *KERNELS.get(name, ())]))

    def private_ways(self, name: str) -> Sequence[str]:
        return PRIVATE_FUNCTIONS.get(name, ())

    def guard_recording(self) -> None:
        guard_switches()

    def recorded_operators(
        self, call: Callable[[], Any], threads: bool
    ) -> tuple[Any, Iterable[str]]:
        """Returns the value of `call`, and the names of all operators that the dispatcher calls, also
        from C++ and from compiled code; no names if another profiler is active.

        Recording all `threads` costs some 30 ms a call. The older profiler of one thread costs less; only
        the suite itself may switch it (`switching_allowed`).
        """
        from torch import _C, autograd

        if self._is_profiled():
            return call(), ()
        if threads:
            all_threads = _C._profiler._ExperimentalConfig(profile_all_threads=True)
            with profiled(experimental_config=all_threads) as profile:
                value = call()
            return value, {event.key for event in profile.key_averages()}
        no_recording = (False, False, False, False, False, _C._profiler._ExperimentalConfig())
        with switching_allowed():
            autograd._enable_profiler_legacy(
                autograd.ProfilerConfig(autograd.ProfilerState.CPU, *no_recording)
            )
        try:
            value = call()
        finally:
            with switching_allowed():
                events_by_thread = autograd._disable_profiler_legacy()
        return value, {event.name() for thread in events_by_thread for event in thread}

    def derive_by(self, output: Any, make: Callable[[Callable[[], Any]], Any]) -> None:
        for array in output if isinstance(output, tuple) else (output,):
            if getattr(array, "requires_grad", False):
                setattr(array, DERIVED_BY, make)

    def is_tracing(self) -> bool:
        import torch

        return torch.compiler.is_compiling()

    def sync(self, outputs: Any) -> None:
        """Wait for all streams of the GPU."""
        if self.device == "cuda":
            self._synchronize()

    def timed_step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        if direction == "forward":
            return super().timed_step(prepared, direction, wrt)
        return step_by_autograd(prepared, direction, wrt)

    def compilations(self, prepared: PreparedCall) -> int:
        """Returns the number of graphs that dynamo has compiled in this process; 0 if it was never
        imported."""
        dynamo = sys.modules.get("torch._dynamo.utils")
        return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])

    def copied(self, array: Any) -> Callable[[], Any]:
        return array.clone

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        """Returns the peak memory of a call's tensors, as the allocator counts it.

        On the CPU this is the largest sum of torch.profiler's events: bytes of allocations and, negative,
        of releases.
        """
        import torch

        if self.device == "cuda":
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call()
            torch.cuda.synchronize()
            return int(torch.cuda.max_memory_allocated() - before)
        with profiled(profile_memory=True) as profile:
            answer = call()
        results: Any = profile.profiler
        events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
        allocated = peak = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            allocated += event.nbytes()
            peak = max(peak, allocated)
        del answer
        return peak
