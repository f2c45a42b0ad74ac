"""Time, peak memory and kernels of a call, as torch reports them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

from backends.prepared import PreparedCall

COLD_BYTES = 256 * 2**20
"""The bytes to write to empty a GPU's L2 cache, more than the largest cache (NVIDIA H200: 50 MB)."""


def compilations() -> int:
    """The number of graphs that dynamo has compiled in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def peak_bytes(device: str, call: Callable[[], Any]) -> int | None:
    """Peak memory of a call in bytes, as torch's allocator reports it.

    On the CPU the events of torch.profiler give the bytes of each allocation and release.
    """
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        kept = call()
    results: Any = profile.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    del kept
    return peak


def device_seconds(call: Callable[[], Any]) -> float:
    """Seconds between two events around the call on the current CUDA stream."""
    import torch

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000.0


def empty_caches() -> None:
    """Empty a GPU's L2 cache by a large write."""
    import torch

    torch.zeros(COLD_BYTES, dtype=torch.uint8, device="cuda")


def kernels(prepared: PreparedCall) -> str:
    """The fused attention kernels in torch's profile of the call, or else its matrix products."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        prepared()
    names = {event.key.removeprefix("aten::") for event in profile.key_averages()}
    fused = sorted(n for n in names if re.match(r"_scaled_dot_product_\w*(attention|math)", n))
    products = sorted(n for n in names if n in ("bmm", "baddbmm", "matmul"))
    return ", ".join(fused or products) or "no attention kernel and no matrix product"
