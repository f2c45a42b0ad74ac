"""A subject: one implementation's call of one case, made ready, timed, and judged on what was timed."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from suite.judge.cell import Check
from suite.judge.gradients import GradientCell
from suite.judge.layers import LayerCell
from suite.judge.verdict import Deviation, NotElected
from suite.measure import protocol
from suite.measure.work import Work
from suite.spec.layers import LayerCase, draw_layer
from suite.spec.problem import Case
from suite.spec.recipes import draw, draw_cotangent

if TYPE_CHECKING:
    from backends.base import Implementation

FRESH_SEED = 7001
"""Added to a case's seed for inputs that the subject has not seen."""

_CHECK = Check("speed", lambda cell: None, lambda level: (), GradientCell)


class Refused(Exception):
    """A time that must not be reported: `kind` in a word, and why."""

    def __init__(self, kind: str, message: str, error_ratio: float | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.error_ratio = kind, message, error_ratio


class Unsupported(Exception):
    """The implementation does not compute the case, or not in this direction; the message says why."""


@dataclass(frozen=True)
class Judged:
    """How right the answer was that was timed."""

    error_ratio: float | None
    grade: str


@dataclass(frozen=True)
class Prepared:
    """What getting ready took, in seconds, and what the call works on.

    `first_call` is that of the first call, tracing and compilation included; `inner` calls make a
    sample; `settled`: warming up came to rest.
    """

    convert: float
    first_call: float
    inner: int
    settled: bool
    work: Work | None


class Subject:
    """One implementation's call in one direction: "forward", "backward" or "forward+backward".

    Raises Unsupported where the implementation declares that it does not compute the case.
    """

    def __init__(
        self,
        implementation: Implementation,
        case: Case | LayerCase,
        direction: str = "forward",
        seed: int = 0,
    ) -> None:
        self.implementation, self.case, self.direction = implementation, case, direction
        self.backend = implementation.backend
        kind = LayerCell if isinstance(case, LayerCase) else GradientCell
        self.cell: Any = kind(_CHECK, case, implementation, seed)
        if implementation.operator != case.operator:
            raise Unsupported(f"computes {implementation.operator}, not {case.operator}")
        needs = () if direction == "forward" else ("gradient",)
        reason = implementation.unsupported(case) or implementation.missing(needs)
        if reason is None and needs and isinstance(case, LayerCase):
            reason = "gradients of layers are judged, and not timed"
        if reason is not None:
            raise Unsupported(reason)
        self.compiled = False
        self.slowest = 0.0
        self.fresh = math.inf
        self.slow = 0.0

    @property
    def wrt(self) -> tuple[str, ...]:
        """The operands whose gradients are timed."""
        return ("query", "key", "value")

    def prepare(self) -> Prepared:
        """Make the arrays, call once, and warm up. Raises Refused where the call raises."""
        inputs = self.cell.inputs
        start = time.perf_counter()
        self.prepared = self.implementation.prepare(inputs)
        self.backend.sync(list(self.prepared.arguments.values()))
        convert = time.perf_counter() - start
        with _quiet():
            step = self.backend.step
            self.make = self._attempt(lambda: step(self.prepared, self.direction, self.wrt))
            start = time.perf_counter()
            self.call = self._attempt(
                lambda: self._ready(self.prepared.arguments, self._cotangent(0))
            )
            self._attempt(lambda: protocol.timed(self.call, self.backend.sync, 1))
            first = time.perf_counter() - start
            again, _ = protocol.timed(self.call, self.backend.sync, 1)
            self.inner, settled, _ = protocol.warm(self._seconds, again)
        return Prepared(convert, first, self.inner, settled, self.work)

    @property
    def work(self) -> Work | None:
        """The operations and bytes of a call; None for operators whose work nobody counted."""
        try:
            return Work.of(self.cell.inputs, self.direction)
        except ValueError:
            return None

    def sample(self, inner: int | None = None) -> float:
        """Seconds of one call, averaged over as many as a sample has."""
        before = self.backend.compilations(self.prepared)
        with _quiet():
            seconds = self._seconds(inner or self.inner)
        self.compiled |= before != self.backend.compilations(self.prepared)
        self.slowest = max(self.slowest, seconds)
        return seconds

    def device_sample(self) -> float | None:
        """Seconds of one call by the device's own clock, its caches emptied; None where it has none."""
        self.backend.cool()
        return self.backend.device_seconds(self.call)

    def judge(self) -> Judged:
        """Judge what was timed, and answers to inputs that the subject has not seen.

        Raises Refused: "value", "non-finite" and the other kinds of wrong answers; "compiled" where
        something was compiled while the clock ran; "not-synced" where it stopped before the work;
        "stale" where fresh inputs take much longer, or get the old answer.
        """
        with _quiet():
            if self.compiled:
                raise Refused("compiled", "something was compiled while the clock ran")
            out = self._judge_sync()
            inputs = self.cell.inputs
            seen = self._hold(out, inputs, self.prepared, self._cotangent(0))
            for number in range(1, protocol.FRESH + 1):
                self._judge_fresh(number, out if number == 1 else None)
            # What the implementation declares decides; a grade of gradients costs an oracle a class.
            return Judged(seen.error_ratio, seen.grade)

    def peak_bytes(self) -> int | None:
        """The most memory a call holds at a time, by the framework's own account; None where it has
        none."""
        with _quiet():
            return self.backend.peak_bytes(self.call, self.prepared)

    def kernel(self) -> str:
        """Which kernels ran, in the framework's own words; empty where it does not say."""
        try:
            with _quiet():
                return self.backend.witness(self.prepared)
        except Exception:
            return ""

    def _ready(self, arguments: Mapping[str, Any], cotangent: Any) -> Callable[[], Any]:
        return self.make(arguments, cotangent)

    def _seconds(self, inner: int) -> float:
        call = self._slowed if self.slow else self.call
        return protocol.timed(call, self.backend.sync, inner)[0]

    def _slowed(self) -> Any:
        """The call, kept up by the share `slow` of what it took."""
        start = time.perf_counter()
        out = self.call()
        self.backend.sync(out)
        end = start + (time.perf_counter() - start) * (1.0 + self.slow)
        while time.perf_counter() < end:
            pass
        return out

    def _attempt(self, call: Callable[[], Any]) -> Any:
        try:
            return self.cell.attempt(call)
        except NotElected as error:
            raise Unsupported(str(error)) from error
        except Deviation as error:
            raise Refused(error.kind, error.message) from error

    def _cotangent(self, number: int) -> Any:
        if self.direction == "forward":
            return None
        values = self._cotangent_values(number)
        turned = self.prepared.layout == "blhd"
        given = np.ascontiguousarray(values.swapaxes(1, 2) if turned else values)
        return self.backend.array(given, self.case.dtype)

    def _cotangent_values(self, number: int) -> np.ndarray:
        return draw_cotangent(self.cell.case, self.cell.seed + FRESH_SEED * number)

    def _fresh(self, number: int) -> Any:
        """Inputs like the case's own with other values, and the same mask and parameters."""
        seed = self.cell.seed + FRESH_SEED * number
        other = (
            draw_layer(self.case, seed)
            if isinstance(self.case, LayerCase)
            else draw(self.case, seed)
        )
        return replace(self.cell.inputs, query=other.query, key=other.key, value=other.value)

    def _judge_sync(self) -> Any:
        """The last of three answers, each of which must be finished when its clock has stopped.

        A busy machine can delay one reading, and hardly that of the same answer in every trial.
        """
        for _ in range(protocol.TRIALS):
            out = [protocol.timed(self.call, self.backend.sync, 1) for _ in range(3)]
            took = min(seconds for seconds, _ in out)
            self._read_all(out[0][1])
            waited = self._read_all(out[2][1]) - self._read_all(out[1][1])
            allowed = max(protocol.UNSYNCED * max(took, self.slowest), protocol.STALE_SECONDS)
            if waited <= allowed:
                return out[2][1]
        raise Refused(
            "not-synced",
            f"the clock stopped after {took * 1e3:.3g} ms, and the answer was there "
            f"{waited * 1e3:.3g} ms later",
        )

    def _read_all(self, out: Any) -> float:
        start = time.perf_counter()
        for array in _leaves(out):
            if self.backend.is_array(array):
                self.backend.to_numpy(array)
        return time.perf_counter() - start

    def _judge_fresh(self, number: int, old: Any) -> None:
        inputs, cotangent = self._fresh(number), self._cotangent(number)
        source = getattr(self.implementation, "inner", self.implementation)
        arguments = source.prepare(inputs).arguments
        call = self._attempt(lambda: self._ready(arguments, cotangent))
        compiled = self.backend.compilations(self.prepared)
        seconds, out = self._attempt(lambda: protocol.timed(call, self.backend.sync, 1))
        if compiled != self.backend.compilations(self.prepared):
            raise Refused("compiled", "fresh inputs of the same shapes are compiled anew")
        if old is not None:
            # Held once: the oracle of a large case takes longer than all its samples.
            self._hold(out, inputs, replace(self.prepared, arguments=arguments), cotangent, number)
        self.fresh = min(seconds, self.fresh)
        beyond = self.fresh - self.slowest
        slow = self.fresh > protocol.STALE_FACTOR * self.slowest and beyond > protocol.STALE_SECONDS
        if number == protocol.FRESH and self.slowest and slow:
            raise Refused(
                "stale",
                f"calls with fresh inputs take {self.fresh * 1e3:.3g} ms or more, the timed ones at most "
                f"{self.slowest * 1e3:.3g} ms: what was timed was not computed anew",
            )

    def _hold(self, out: Any, inputs: Any, prepared: Any, cotangent: Any, number: int = 0) -> Any:
        """Hold what was timed against the oracle; raises Refused with the worst element."""
        cell = self.cell
        cell.measured = type(cell.measured)()
        try:
            if self.direction == "forward":
                cell.judge(cell.read(out, inputs, prepared.layout), inputs)
            else:
                output, gradients = out
                values = self._cotangent_values(number)
                if output is not None:
                    cell.judge(cell.read(output, inputs, prepared.layout), inputs)
                found = cell.read_gradients(gradients, inputs, prepared, self.wrt)
                cell.judge_gradients(found, inputs, values)
        except NotElected as error:
            raise Unsupported(str(error)) from error
        except Deviation as error:
            fresh = " (fresh inputs)" if number else ""
            raise Refused(error.kind, error.message + fresh, cell.measured.error_ratio) from error
        return cell.measured


def _leaves(out: Any) -> Iterator[Any]:
    """The arrays of an output: itself, or those of a pair and of a dictionary."""
    if isinstance(out, Mapping):
        out = list(out.values())
    if isinstance(out, Sequence):
        for part in out:
            yield from _leaves(part)
    else:
        yield out


class _quiet(warnings.catch_warnings):
    """A context in which warnings are not shown and NumPy says nothing of NaN."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        self._errors = np.errstate(all="ignore")
        self._errors.__enter__()
        return found

    def __exit__(self, *details: Any) -> None:
        self._errors.__exit__(*details)
        super().__exit__(*details)
