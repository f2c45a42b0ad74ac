"""Ring attention of `torch.distributed.tensor.experimental.context_parallel`, in two processes.

On a CPU `context_parallel` itself refuses scaled dot-product attention: the flash kernel of the CPU has
no sharding strategy. So two processes, connected by gloo, call its ring around that kernel, forward and
backward.
"""

from __future__ import annotations

import atexit
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from attention_conformance.backends._torch.engine import TorchEngine
from attention_conformance.backends._torch.kernels import SDPA
from attention_conformance.backends.declared import Declared
from attention_conformance.backends.limits import Limits
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.spec.inputs import Inputs

RANKS = 2
"""The number of processes of a ring."""


class RankProcesses:
    """The processes of a ring, from the first call to the end of this process. Threads take turns."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.processes: list[tuple[subprocess.Popen[bytes], Any]] = []
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        atexit.register(self.end)

    def call(self, arguments: Mapping[str, Any]) -> list[Any]:
        """Returns `rank_answer` of all ranks for the same arguments. Raises the first error of a rank."""
        with self.lock:
            try:
                pipes = [pipe for _, pipe in self.started_processes()]
                for pipe in pipes:
                    pickle.dump(arguments, pipe)
                    pipe.flush()
                answers = [pickle.load(pipe) for pipe in pipes]
            except BaseException:
                # Interrupted: an answer may be on its way.
                self.end()
                raise
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def started_processes(self) -> list[tuple[subprocess.Popen[bytes], Any]]:
        """Returns each process with the parent's file of its socket. Starts the processes if there are
        none."""
        if not self.processes:
            self.folder = tempfile.TemporaryDirectory()
            for rank in range(RANKS):
                parent_socket, child_socket = socket.socketpair()
                with parent_socket, child_socket:
                    settings = (rank, str(Path(self.folder.name, "store")), child_socket.fileno())
                    code = f"from {__name__} import serve; serve{settings!r}"
                    process = subprocess.Popen(
                        [sys.executable, "-c", code], pass_fds=(child_socket.fileno(),)
                    )
                    self.processes.append((process, parent_socket.makefile("rwb")))
        return self.processes

    def end(self) -> None:
        """End the processes. The next call starts new ones."""
        for process, pipe in self.processes:
            process.kill()
            process.wait()
            with suppress(OSError):
                pipe.close()
        self.processes = []
        if self.folder is not None:
            self.folder.cleanup()


def serve(rank: int, store: str, descriptor: int) -> None:
    """Run in the process of a rank. Reads dictionaries of arguments from the socket `descriptor` and
    writes `rank_answer` of each, until the parent closes the socket."""
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, RANKS), rank=rank, world_size=RANKS
    )
    pipe = socket.socket(fileno=descriptor).makefile("rwb")
    while True:
        try:
            arguments = pickle.load(pipe)
        except EOFError:
            return
        try:
            answer: Any = rank_answer(rank, **arguments)
        except Exception as error:
            answer = RuntimeError(f"rank {rank}: {type(error).__name__}: {error}")
        pickle.dump(answer, pipe)
        pipe.flush()


def rank_answer(rank: int, operands: Any, cotangent: Any, settings: Mapping[str, Any]) -> Any:
    """Returns the output rows of one rank, or with a cotangent the gradients of its queries, keys and
    values."""
    import torch
    from torch import distributed
    from torch.distributed.tensor.experimental._context_parallel import _attention as ring

    ring._cp_options.enable_load_balance = False
    # By default the ring computes float64 in float32.
    ring._cp_options.convert_to_f32 = operands[0].dtype != torch.float64
    group: Any = distributed.group.WORLD
    aten = torch.ops.aten
    query, key, value = (block_of_rank(x, rank) for x in operands)
    output, lse = ring._templated_ring_attention(
        group, 2, aten._scaled_dot_product_flash_attention_for_cpu, query, key, value, **settings
    )
    if cotangent is None:
        return output
    return ring._templated_ring_attention_backward(
        group, 2, aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
        block_of_rank(cotangent, rank), "grad_out", query, key, value, output, lse,
        dropout_p=0.0, **settings,
    )  # fmt: skip


def block_of_rank(array: Any, rank: int) -> Any:
    """Returns the block (B, H, L / n, D) of an array (B, H, L, D) that a rank has."""
    return array.chunk(RANKS, 2)[rank].contiguous()


class Ring(Implementation):
    """Ring attention, with keys that are gathered at once."""

    backend: TorchEngine

    name = "ring"
    postponed = frozenset({"kernels"})
    declared = Declared(
        # Answers of 16 bits over the keys of a rank are merged.
        numerics={"f64": "fused", "f32": "fused", "bf16": "stepwise", "f16": "stepwise"},
        features=frozenset({"causal", "native-causal", "scale", "gradient", "other-shapes"}),
        elections={"causal-alignment": "top-left", "value-size": "raises"},
        limits=Limits(lengths_multiple_of=(2 * RANKS,), equal_lengths=True, equal_heads=True),
    )

    def __init__(self, backend: TorchEngine) -> None:
        self.ranks = RankProcesses()
        super().__init__(backend)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        arguments = SDPA.arguments(self.backend, inputs)
        settings = {
            "is_causal": bool(arguments.pop("is_causal", False)),
            "scale": arguments.pop("scale", None),
        }
        function = self.function(settings)

        def call(query: Any, key: Any, value: Any) -> Any:
            return function.apply(query, key, value)

        return PreparedCall(call, arguments)

    def function(self, settings: Mapping[str, Any]) -> Any:
        """Returns the ring as a `torch.autograd.Function` of query, key and value."""
        torch, answers_of_ranks = self.backend.torch, partial(self.answers_of_ranks, settings)

        class Function(torch.autograd.Function):  # type: ignore[name-defined]
            @staticmethod
            def forward(ctx: Any, *operands: Any) -> Any:
                ctx.save_for_backward(*operands)
                return torch.cat(answers_of_ranks(operands, None), 2)

            @staticmethod
            @torch.autograd.function.once_differentiable
            def backward(ctx: Any, cotangent: Any) -> Any:
                parts = answers_of_ranks(ctx.saved_tensors, cotangent)
                return tuple(torch.cat(blocks, 2) for blocks in zip(*parts, strict=True))

        return Function

    def answers_of_ranks(
        self, settings: Mapping[str, Any], operands: Any, cotangent: Any
    ) -> list[Any]:
        """Returns the answers of all ranks for detached copies of the arrays."""
        detached = tuple(x.detach().clone() for x in operands)
        detached_cotangent = None if cotangent is None else cotangent.detach().clone()
        return self.ranks.call(
            {"operands": detached, "cotangent": detached_cotangent, "settings": settings}
        )


def rings(backend: TorchEngine) -> list[Implementation]:
    """Returns the ring on a CPU; [] on a GPU, where it needs one GPU per process."""
    has_processes = hasattr(backend.torch.distributed, "init_process_group")
    if backend.device != "cpu" or not has_processes:
        return []
    return [Ring(backend)]
