"""Time workloads in every implementation, round-robin: disturbances of the machine affect all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from attention_conformance.suite.measure import protocol
from attention_conformance.suite.measure.options import UNSTORED, BenchOptions
from attention_conformance.suite.measure.pool import Offer, Pool, Worker, WorkerFailure
from attention_conformance.suite.records import machine
from attention_conformance.suite.records.speed import SpeedHeader, SpeedRecord
from attention_conformance.suite.run.progress import Steps
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue.workloads import Workload


def header(options: BenchOptions, pool: Pool) -> SpeedHeader:
    """The header of a run's records."""
    versions = {"numpy": metadata.version("numpy")}
    for worker in pool.workers.values():
        versions |= worker.hello["versions"]
    return SpeedHeader(
        versions=versions,
        options={n: value for n, value in asdict(options).items() if n not in UNSTORED}
        | {"samples": options.count},
        **machine.origin(),
    )


@dataclass
class Measurement:
    """One measurement, from the first sample to the record.

    `identity` has the record's fields that are known before timing, `preparation` the fields of
    `suite.measure.call.Preparation`.
    """

    worker: Worker
    key: str
    identity: dict[str, Any]
    preparation: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    failure: WorkerFailure | None = None
    samples: list[float] = field(default_factory=list)
    said: float = 0.0
    waited: float = 0.0
    announced: bool = False

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """The worker's answer; {} after a failure, which is stored in `failure`."""
        try:
            return self.worker.ask(do=do, key=self.key, **more)
        except WorkerFailure as error:
            self.failure = error
            return {}

    def open(self) -> None:
        """Have the worker prepare the call, after restarting a dead worker."""
        self.samples, self.said, self.waited = [], 0.0, 0.0
        case, direction = self.identity["case"], self.identity["direction"]
        name, seed = self.identity["implementation"], self.seed
        try:
            if self.worker.died:
                self.worker.restart()
        except WorkerFailure as error:
            self.failure = error
            return
        self.preparation = self.ask(
            "open", implementation=name, case=case, direction=direction, seed=seed
        )

    def sample(self) -> None:
        """Take one sample. `said` sums seconds of the worker's clock, `waited` those of this process."""
        start = protocol.now()
        answer = self.ask("sample", inner=None, slow=0.0)
        if answer:
            self.waited += protocol.now() - start
            self.said += answer["seconds"] * (self.preparation["inner"] + 1)
            self.samples.append(answer["seconds"])

    def finish(self) -> SpeedRecord:
        """Judge the timed answers, measure the machine's limits, and make the record."""
        fields: dict[str, Any] = dict(self.preparation.get("work") or {})
        if self.waited > protocol.CLOCK * self.said + protocol.CLOCK_SECONDS:
            text = f"the worker says {self.said:.3g} s, its samples took {self.waited:.3g} s"
            self.failure = self.failure or WorkerFailure("refused", "clock", text)
        for do in ("judge", "facts"):
            if self.failure is None:
                fields |= self.ask(do)
        if self.failure is None:
            fields |= self._limit(fields)
        record = self._record(fields)
        if _beyond(record):
            # The measured limit may be too low: measure it once more.
            fields |= self._limit(fields, again=True)
            record = self._record(fields)
            if _beyond(record):
                text = f"{record.share_of_gemm:.0%} of the largest matrix product cannot be true"
                self.failure = WorkerFailure("refused", "over-ceiling", text, record.error_ratio)
                record = self._record(fields)
        if not self.worker.died:
            self.ask("close")
        return record

    def _limit(self, fields: dict[str, Any], again: bool = False) -> dict[str, Any]:
        dtype = self.identity["dtype"]
        return self.ask("limit", dtype=dtype, bytes=fields.get("bytes", 0), again=again)

    def _record(self, fields: dict[str, Any]) -> SpeedRecord:
        every = {**self.identity, **fields}
        if self.preparation:
            every["first_call"] = self.preparation["first_call"]
        failure = self.failure
        if failure is not None:
            every |= {"status": failure.status, "kind": failure.kind, "message": failure.message}
            every["error_ratio"] = failure.error_ratio
            return SpeedRecord(**every)
        status = "timed" if self.preparation["settled"] else "unsettled"
        return SpeedRecord(**every, samples=tuple(self.samples), status=status)


def decoded(case: Case) -> int:
    """The tokens that a call computes, of all samples, if it is a step of decoding: it has fewer queries
    than keys. 0 for other calls."""
    if case.sizes.Lq >= case.sizes.Lk:
        return 0
    return math.prod(case.letters[axis] for axis in case.axes.get("query", "") if axis in "bq")


def _beyond(record: SpeedRecord) -> bool:
    return (record.share_of_gemm or 0.0) > protocol.OVER_CEILING


def measure(
    options: BenchOptions, pool: Pool, say: Callable[[str], None] = lambda text: None
) -> Iterator[SpeedRecord]:
    """The records of a run, by workload. `say` receives progress messages. Raises NothingToMeasure."""
    offers = pool.offers()
    groups = [
        (workload, workload.case(name), direction)
        for workload in options.workloads
        for name in options.dtypes
        for direction in options.directions
        if direction == "forward" or workload.trained
    ]
    fitting = [[(b, o) for b, o in offers if o.operator is case.operator] for _, case, _ in groups]
    steps = Steps(sum(map(len, fitting)), say)
    for (workload, case, direction), its in zip(groups, fitting, strict=True):
        yield from _group(options, pool, workload, case, direction, its, steps)


def _group(
    options: BenchOptions, pool: Pool, workload: Workload, case: Case, direction: str,
    offers: Sequence[tuple[str, Offer]], steps: Steps,
) -> Iterator[SpeedRecord]:  # fmt: skip
    measurements = []
    for backend, offer in offers:
        worker = pool.workers[backend]
        identity = {
            "workload": workload.name,
            "case": case.id,
            "backend": backend,
            "implementation": offer.name,
            "mode": offer.mode,
            "device": options.device,
            "dtype": case.dtype.name,
            "direction": direction,
            "threads": options.threads or len(worker.cpus),
            "keys": case.sizes.Lk,
            "swept": workload.swept,
            "tokens": decoded(case) if direction == "forward" else 0,
        }
        measurements.append(
            Measurement(worker, f"{backend}:{offer.name}", identity, seed=options.seed)
        )
    while measurements:
        _sample(measurements, options.count, steps)
        measurement = measurements.pop(0)
        yield measurement.finish()
        _forget_lost(measurement.worker, measurements)


def _sample(measurements: Sequence[Measurement], count: int, steps: Steps) -> None:
    """Open the measurements, each of which is one of the `steps`, and take their samples in turn."""
    turn = 0
    while left := [m for m in measurements if m.failure is None and len(m.samples) < count]:
        # Alternate directions, so that no measurement always follows the slowest one.
        for measurement in left if turn % 2 == 0 else left[::-1]:
            if measurement.preparation:
                measurement.sample()
            else:
                if not measurement.announced:
                    steps.next(
                        "{workload} {direction} {dtype}, {key}".format(
                            **measurement.identity, key=measurement.key
                        )
                    )
                measurement.announced = True
                measurement.open()
            _forget_lost(measurement.worker, measurements)
        turn += 1


def _forget_lost(worker: Worker, measurements: Sequence[Measurement]) -> None:
    """Reset the other measurements of a dead worker, so that they are opened again."""
    if worker.died:
        for measurement in measurements:
            if measurement.worker is worker and measurement.failure is None:
                measurement.preparation, measurement.samples = {}, []
