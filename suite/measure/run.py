"""Time workloads in every implementation, round-robin: disturbances of the machine affect all alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

from attention_conformance.suite.measure import protocol
from attention_conformance.suite.measure.options import UNSTORED_OPTIONS, BenchOptions
from attention_conformance.suite.measure.pool import Offer, Pool, Worker, WorkerFailure
from attention_conformance.suite.records import machine
from attention_conformance.suite.records.speed import SpeedHeader, SpeedRecord
from attention_conformance.suite.run.progress import Steps
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue.workloads import Workload


def header(options: BenchOptions, pool: Pool) -> SpeedHeader:
    """Returns the header of a run's records."""
    versions = {"numpy": metadata.version("numpy")}
    for worker in pool.workers.values():
        versions |= worker.hello["versions"]
    return SpeedHeader(
        versions=versions,
        options={n: value for n, value in asdict(options).items() if n not in UNSTORED_OPTIONS}
        | {"samples": options.count},
        **machine.origin(),
    )


@dataclass
class Measurement:
    """The measurement of one implementation on one case, from the first sample to the record.

    - `key`: the key of the call in the worker
    - `identity`: the fields of the record that are known before timing
    - `preparation`: the fields of `suite.measure.call.Preparation`; {} before the call is prepared
    - `worker_seconds`, `seconds_here`: the time of samples by the worker's clock, and by this process's
    """

    worker: Worker
    key: str
    identity: dict[str, Any]
    preparation: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    failure: WorkerFailure | None = None
    samples: list[float] = field(default_factory=list)
    worker_seconds: float = 0.0
    seconds_here: float = 0.0
    announced: bool = False

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send the request `do` to the worker, and return the answer. A WorkerFailure is stored in
        `failure`, and {} returned."""
        try:
            return self.worker.ask(do=do, key=self.key, **fields)
        except WorkerFailure as error:
            self.failure = error
            return {}

    def open(self) -> None:
        """Let the worker prepare the call, and store the answer in `preparation`. A dead worker is
        restarted before. Errors are stored in `failure`."""
        self.samples, self.worker_seconds, self.seconds_here = [], 0.0, 0.0
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
        """Take one sample, and add its times to `samples`, `worker_seconds` and `seconds_here`."""
        start = protocol.now()
        answer = self.ask("sample", inner=None, slow=0.0)
        if answer:
            self.seconds_here += protocol.now() - start
            self.worker_seconds += answer["seconds"] * (self.preparation["inner"] + 1)
            self.samples.append(answer["seconds"])

    def finish(self) -> SpeedRecord:
        """Judge the timed answers, measure the machine's limits, and close the call. Returns the record;
        of a failure without a time."""
        fields: dict[str, Any] = dict(self.preparation.get("work") or {})
        if self.seconds_here > protocol.CLOCK_RATIO * self.worker_seconds + protocol.CLOCK_SECONDS:
            claimed = f"the worker says {self.worker_seconds:.3g} s"
            text = f"{claimed}, its samples took {self.seconds_here:.3g} s"
            self.failure = self.failure or WorkerFailure("refused", "clock", text)
        for do in ("judge", "facts"):
            if self.failure is None:
                fields |= self.ask(do)
        if self.failure is None:
            fields |= self._measure_limits(fields)
        record = self._record(fields)
        if _exceeds_limit(record):
            # The measured limit may be too low: measure it once more.
            fields |= self._measure_limits(fields, again=True)
            record = self._record(fields)
            if _exceeds_limit(record):
                text = f"{record.share_of_gemm:.0%} of the largest matrix product cannot be true"
                self.failure = WorkerFailure("refused", "over-ceiling", text, record.error_ratio)
                record = self._record(fields)
        if not self.worker.died:
            self.ask("close")
        return record

    def _measure_limits(self, fields: dict[str, Any], again: bool = False) -> dict[str, Any]:
        dtype = self.identity["dtype"]
        return self.ask("limit", dtype=dtype, bytes=fields.get("bytes", 0), again=again)

    def _record(self, fields: dict[str, Any]) -> SpeedRecord:
        values = {**self.identity, **fields}
        if self.preparation:
            values["first_call"] = self.preparation["first_call"]
        failure = self.failure
        if failure is not None:
            values |= {"status": failure.status, "kind": failure.kind, "message": failure.message}
            values["error_ratio"] = failure.error_ratio
            return SpeedRecord(**values)
        status = "timed" if self.preparation["settled"] else "unsettled"
        return SpeedRecord(**values, samples=tuple(self.samples), status=status)


def decoded_tokens(case: Case) -> int:
    """Returns the number of tokens (batch size x queries) of a decoding step, which has fewer queries
    than keys; 0 for other cases."""
    if case.sizes.Lq >= case.sizes.Lk:
        return 0
    return math.prod(case.letters[axis] for axis in case.axes.get("query", "") if axis in "bq")


def _exceeds_limit(record: SpeedRecord) -> bool:
    """True if the call computes faster than the machine's fastest matrix product, which is impossible."""
    return (record.share_of_gemm or 0.0) > protocol.MOST_OF_LIMIT


def measure(
    options: BenchOptions, pool: Pool, say: Callable[[str], None] = lambda text: None
) -> Iterator[SpeedRecord]:
    """Times all selected workloads, and yields their records, workload by workload. `say` gets messages
    on the progress. Raises NothingToMeasure."""
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
    for (workload, case, direction), group_offers in zip(groups, fitting, strict=True):
        yield from _time_group(options, pool, workload, case, direction, group_offers, steps)


def _time_group(
    options: BenchOptions, pool: Pool, workload: Workload, case: Case, direction: str,
    offers: Sequence[tuple[str, Offer]], steps: Steps,
) -> Iterator[SpeedRecord]:  # fmt: skip
    """Times a case in one direction in the implementations `offers`, pairs of a backend and an offer.
    Yields a record for each."""
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
            "tokens": decoded_tokens(case) if direction == "forward" else 0,
        }
        measurements.append(
            Measurement(worker, f"{backend}:{offer.name}", identity, seed=options.seed)
        )
    while measurements:
        _sample(measurements, options.count, steps)
        measurement = measurements.pop(0)
        yield measurement.finish()
        _reset_lost(measurement.worker, measurements)


def _sample(measurements: Sequence[Measurement], count: int, steps: Steps) -> None:
    """Prepare the calls, and take `count` samples of each measurement in turn. `steps` announces each
    measurement once."""
    turn = 0
    while pending := [m for m in measurements if m.failure is None and len(m.samples) < count]:
        # Alternate directions, so that no measurement always follows the slowest one.
        for measurement in pending if turn % 2 == 0 else pending[::-1]:
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
            _reset_lost(measurement.worker, measurements)
        turn += 1


def _reset_lost(worker: Worker, measurements: Sequence[Measurement]) -> None:
    """If the worker is dead, reset its measurements, so that their calls are prepared again."""
    if worker.died:
        for measurement in measurements:
            if measurement.worker is worker and measurement.failure is None:
                measurement.preparation, measurement.samples = {}, []
