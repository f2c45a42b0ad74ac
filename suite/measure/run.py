"""Measure workloads in every implementation, round-robin, so that all share whatever the machine does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from suite.measure import protocol
from suite.measure.pool import DEFAULT_FUNCTION_NUMERICS, Asked, Failed, Worker
from suite.records import machine
from suite.records.speed import SpeedHeader, SpeedRecord
from suite.spec.layers import LayerCase
from suite.spec.problem import Case
from suite.spec.workloads import Workload, named

MODES = ("eager", "compiled", "all")


class NothingToMeasure(Exception):
    """No implementation, backend or workload is left; the message says what there is."""


@dataclass(frozen=True)
class Options:
    """What is to be measured, as plain data; stored in the header of the records.

    `threads` 0 means one for every CPU. `directions`: "forward" is always measured; the others of
    workloads that are part of training.
    """

    backend: tuple[str, ...]
    workload: tuple[str, ...] = ("all",)
    implementation: tuple[str, ...] = ()
    function: tuple[str, ...] = ()
    numerics: str = DEFAULT_FUNCTION_NUMERICS
    direction: tuple[str, ...] = ("forward", "backward", "forward+backward")
    dtype: tuple[str, ...] = ("f32",)
    mode: str = "all"
    device: str = "cpu"
    threads: int = 1
    samples: int = protocol.SAMPLES
    seed: int = 0

    @property
    def workloads(self) -> list[Workload]:
        """The workloads by name, each once. Raises ValueError that lists the names."""
        found = [w for text in self.workload for w in named(text)]
        return list({w.name: w for w in found}.values())


@dataclass
class Team:
    """The workers of a run by backend; a context that ends them."""

    options: Options
    workers: dict[str, Worker] = field(default_factory=dict)

    def __enter__(self) -> Team:
        try:
            for backend in dict.fromkeys(self.options.backend):
                self.workers[backend] = Worker(asked(self.options, backend))
        except Failed as error:
            self.__exit__()
            raise NothingToMeasure(error.message) from error
        return self

    def __exit__(self, *details: Any) -> None:
        for worker in self.workers.values():
            worker.end()

    def header(self) -> SpeedHeader:
        """What this run is."""
        versions = {"numpy": metadata.version("numpy")}
        for worker in self.workers.values():
            versions |= worker.hello["versions"]
        return SpeedHeader(
            protocol=protocol.VERSION,
            versions=versions,
            options=asdict(self.options),
            imports={name: worker.hello["imported"] for name, worker in self.workers.items()},
            **machine.origin(),
        )

    def implementations(self) -> list[tuple[str, dict[str, Any]]]:
        """Backend and implementation of all that is asked for.

        Raises NothingToMeasure for a name that does not exist, and where nothing is left.
        """
        offered = [
            (backend, offer)
            for backend, worker in self.workers.items()
            for offer in worker.hello["implementations"]
        ]
        wanted = set(self.options.implementation)
        if wanted:
            known = {name for b, o in offered for name in (o["name"], f"{b}:{o['name']}")}
            if unknown := sorted(wanted - known):
                names = ", ".join(f"{b}:{o['name']}" for b, o in offered)
                raise NothingToMeasure(
                    f"unknown implementation {', '.join(unknown)}; valid: {names}"
                )
            offered = [(b, o) for b, o in offered if {o["name"], f"{b}:{o['name']}"} & wanted]
        else:
            offered = [(b, o) for b, o in offered if self.options.mode in ("all", o["mode"])]
        if self.options.function and not wanted:
            own = {text.rpartition(":")[2] for text in self.options.function}
            offered = [(b, o) for b, o in offered if o["name"].partition("@")[0] in own]
        if not offered:
            raise NothingToMeasure(f"no implementation in mode {self.options.mode}")
        return offered


@dataclass
class Entry:
    """One measurement in the making."""

    worker: Worker
    key: str
    identity: dict[str, Any]
    ready: dict[str, Any] = field(default_factory=dict)
    failed: Failed | None = None
    samples: list[float] = field(default_factory=list)
    device_samples: list[float] = field(default_factory=list)

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The worker's answer; {} and `failed` where there is none."""
        try:
            return self.worker.ask(do=do, key=self.key, **more)
        except Failed as error:
            self.failed = error
            return {}

    def sample(self, on_device: bool) -> None:
        """Take one sample."""
        found = self.ask("sample", inner=None, slow=0.0, device=on_device)
        if found:
            self.samples.append(found["seconds"])
            if found["device"] is not None:
                self.device_samples.append(found["device"])

    def finish(self) -> SpeedRecord:
        """Judge what was timed, measure the ceilings, and make the record."""
        judged, facts, ceiling = ({} for _ in range(3))  # type: dict[str, Any], dict[str, Any], dict[str, Any]
        work = self.ready.get("work") or {}
        if self.failed is None:
            judged = self.ask("judge")
        if self.failed is None:
            facts = self.ask("facts")
        if self.failed is None:
            ceiling = self._ceiling(work)
        record = self._record(judged, facts, ceiling, work)
        share = record.share_of_gemm
        if share is not None and share > protocol.OVER_CEILING:
            # The ceiling itself may have been disturbed: it is measured once more.
            ceiling = self._ceiling(work, again=True)
            record = self._record(judged, facts, ceiling, work)
            if (record.share_of_gemm or 0.0) > protocol.OVER_CEILING:
                text = f"{record.share_of_gemm:.0%} of the largest matrix product cannot be true"
                self.failed = Failed("refused", "over-ceiling", text, record.error_ratio)
                record = self._record(judged, facts, ceiling, work)
        if not self.failed or self.failed.kind != "crash":
            self.ask("close")
        return record

    def _ceiling(self, work: dict[str, Any], again: bool = False) -> dict[str, Any]:
        dtype = self.identity["dtype"]
        return self.ask("ceiling", dtype=dtype, bytes=work.get("bytes", 0), again=again)

    def _record(
        self,
        judged: dict[str, Any],
        facts: dict[str, Any],
        ceiling: dict[str, Any],
        work: dict[str, Any],
    ) -> SpeedRecord:
        made: dict[str, Any] = {**self.identity, **work, **ceiling, **facts, **judged}
        if self.ready:
            made |= {n: self.ready[n] for n in ("convert", "first_call", "inner")}
        if self.failed is not None:
            failed = self.failed
            made |= {"status": failed.status, "kind": failed.kind, "message": failed.message}
            made["error_ratio"] = failed.error_ratio
            return SpeedRecord(**made)
        made["samples"], made["device_samples"] = tuple(self.samples), tuple(self.device_samples)
        return SpeedRecord(**made, status="timed" if self.ready["settled"] else "unsettled")


def asked(options: Options, backend: str) -> Asked:
    """The worker that the options ask for."""
    return Asked(backend, options.device, options.threads, options.function, options.numerics)


def measure(
    team: Team, told: Callable[[SpeedRecord], None] = lambda record: None
) -> Iterator[SpeedRecord]:
    """The records of a run, workload by workload. Raises NothingToMeasure."""
    offered = team.implementations()
    for workload in team.options.workloads:
        for dtype in team.options.dtype:
            case = workload.case(dtype)
            fitting = [(b, o) for b, o in offered if o["operator"] == case.operator]
            for direction in team.options.direction:
                if direction == "forward" or workload.trained:
                    yield from _group(team, workload, case, direction, fitting)


def _group(
    team: Team,
    workload: Workload,
    case: Case | LayerCase,
    direction: str,
    offered: list[tuple[str, dict[str, Any]]],
) -> Iterator[SpeedRecord]:
    options = team.options
    entries = []
    for backend, offer in offered:
        worker = team.workers[backend]
        identity = {
            "workload": workload.name,
            "case": case.id,
            "backend": backend,
            "implementation": offer["name"],
            "mode": offer["mode"],
            "device": options.device,
            "dtype": case.dtype.name,
            "direction": direction,
            "threads": options.threads or len(worker.asked.cpus),
            "seed": options.seed,
            "operator": case.operator,
            "keys": (case.problem if isinstance(case, Case) else case).sizes.Lk,
            "swept": workload.swept,
        }
        entry = Entry(worker, f"{backend}:{offer['name']}", identity)
        entries.append(entry)
        entry.ready = entry.ask(
            "open",
            implementation=offer["name"],
            case=case.id,
            direction=direction,
            seed=options.seed,
        )
    for number in range(options.samples):
        # There and back again, so that none is always the one after the slowest.
        for entry in entries if number % 2 == 0 else entries[::-1]:
            if entry.failed is None:
                entry.sample(options.device != "cpu")
    for entry in entries:
        yield entry.finish()
