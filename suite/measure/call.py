"""A timed call: prepare one implementation's call of one case, time it, and judge its answers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Any

import numpy as np

from attention_conformance.backends.compilers import Compiled
from attention_conformance.backends.protocol import Implementation, PreparedCall
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.answer import Answer
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.derivative import (
    differentiable_arrays,
    judge_gradients,
    native_cotangent,
    read_gradients,
    read_output,
)
from attention_conformance.suite.judge.verdict import Measured, NotApplicable, WrongAnswer
from attention_conformance.suite.measure import protocol
from attention_conformance.suite.measure.clock import Rotation, clock_of
from attention_conformance.suite.measure.function_facts import FunctionFacts
from attention_conformance.suite.measure.protocol import RefusedTime, UnsupportedCall
from attention_conformance.suite.measure.seen import RecordedAnswers, digest_of
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.features import ARRAYS
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.operator import Work

FRESH_SEED = 7001
"""Added to a case's seed to draw fresh inputs."""

UNTIMED = ("bias", *ARRAYS)
"""Arrays whose gradients are not timed, because many kernels return none."""

_CHECK = Check("speed", lambda cell: None, lambda level: ())


@dataclass(frozen=True)
class Preparation:
    """Seconds of preparing a call, and the size of a sample.

    - `first_call`: seconds of the first call, with tracing and compilation
    - `inner`: calls per sample
    - `settled`: True if times settled during the warm-up
    - `work`: operations and bytes; None if the operator does not count them
    """

    first_call: float
    inner: int
    settled: bool
    work: Work | None


@dataclass(frozen=True)
class ReturnedValues:
    """The NumPy values that a call returned, before judging; `failure` if they are invalid."""

    output: Answer | None = None
    gradients: dict[str, np.ndarray] | None = None
    failure: Exception | None = None


class TimedCall:
    """One implementation's call of a case in one of `suite.spec.vocabulary.DIRECTIONS`.

    A backward pass computes the gradients of the arrays `wrt`. `own`: facts about a user's function.
    The constructor raises UnsupportedCall if the implementation declares the case unsupported.
    """

    def __init__(
        self,
        implementation: Implementation,
        case: Case,
        direction: str = "forward",
        seed: int = 0,
        own: FunctionFacts | None = None,
    ) -> None:
        self.implementation, self.case, self.direction = implementation, case, direction
        self.backend, self.own = implementation.backend, own or FunctionFacts()
        self.clock = clock_of(self.backend, self.own.round_trip)
        self.cell = Cell(_CHECK, case, implementation, seed)
        if implementation.operator is not case.operator:
            raise UnsupportedCall(f"computes {implementation.operator}, not {case.operator}")
        needs = () if direction == "forward" else ("gradient",)
        reason = implementation.unsupported(case) or implementation.missing(needs)
        if reason is not None:
            raise UnsupportedCall(reason)
        self.has_compiled = False
        self.samples: list[float] = []
        self.slowdown = 0.0

    @property
    def wrt(self) -> list[str]:
        """The arrays whose gradients are timed."""
        return [
            n for n in differentiable_arrays(self.prepared, self.cell.inputs) if n not in UNTIMED
        ]

    @property
    def work(self) -> Work | None:
        """The operations and bytes of a call; None if the operator does not count them."""
        count = self.case.operator.work
        return None if count is None else count(self.cell.inputs, self.direction)

    def prepare(self) -> Preparation:
        """Create the arrays, call once, and warm up. Returns what was measured. Raises RefusedTime if the
        call raises."""
        self.prepared = self._prepare(self.implementation, self.cell.inputs)
        self.backend.sync(list(self.prepared.arguments.values()))
        with leaks.without_warnings():
            step = self.backend.timed_step
            self.step = self._attempt(lambda: step(self.prepared, self.direction, self.wrt))
            start = protocol.now()
            cotangent = self._cotangent(0)
            call = self._attempt(lambda: self.step(self.prepared.arguments, cotangent))
            self._timed(call)
            first_call = protocol.now() - start
            new_sets = map(self._inputs, range(1, self._set_count()))
            new_arguments = [self._arguments(inputs) for inputs in new_sets]
            calls = [call, *(self.step(arguments, cotangent) for arguments in new_arguments)]
            self.calls = Rotation(calls)
            self.recorded = [RecordedAnswers() for _ in calls]
            seconds, _ = self._timed(self.calls)
            self.inner, settled, _ = protocol.warm(self._sample_seconds, seconds)
        return Preparation(first_call, self.inner, settled, self.work)

    def sample(self, inner: int | None = None) -> float:
        """Time and store a sample. Returns the seconds of one call, averaged over `inner` calls."""
        before = self.backend.compilations(self.prepared)
        with leaks.without_warnings():
            seconds = self._sample_seconds(inner or self.inner)
        self.has_compiled |= before != self.backend.compilations(self.prepared)
        self.samples.append(seconds)
        return seconds

    def judge(self) -> float | None:
        """Judges recorded answers (`judge_recorded`) and an answer to new inputs. Returns the error ratio
        of the timed answer.

        Raises RefusedTime with one of these kinds:

        - "value", "non-finite" and the other kinds of wrong answers
        - "compiled": the framework compiled during a sample
        - "stale": new inputs take much longer than known inputs
        """
        with leaks.without_warnings():
            if self.has_compiled:
                raise RefusedTime("compiled", "the framework compiled during a sample")
            self._record_extra_calls()
            measured = self.judge_recorded()
            self._judge_new_inputs()
            if self.own.watched is not None:
                for number in range(self._set_count()):
                    self._attempt(self.own.watched.prepare(self._inputs(number)))
            return measured.error_ratio

    def judge_recorded(self) -> Measured:
        """Judge recorded answers: to the first set of inputs, to a random part of the other sets, and to
        sets with several different answers. Raises RefusedTime.

        Returns the figures of the first set, which do not depend on chance.
        """
        called = [number for number, answers in enumerate(self.recorded) if answers.counts]
        sample = SystemRandom().sample(called, math.ceil(len(called) * protocol.JUDGED_SHARE))
        varying = [number for number in called if len(self.recorded[number].counts) > 1]
        measured = None
        with leaks.without_warnings():
            for number in dict.fromkeys((*called[:1], *sample, *varying)):
                self.cell.measured = Measured()
                answers = self.recorded[number]
                for digest, reading in answers.values.items():
                    suffix = (
                        f" (in {answers.counts[digest]} of {answers.counts.total()} recorded calls)"
                    )
                    suffix = suffix if len(answers.counts) > 1 else ""
                    self._judge_values(reading, self._inputs(number), 0, suffix)
                measured = measured or self.cell.measured
        return measured or Measured()

    def record(self, out: Any) -> None:
        """Record `out`, the answer of the last call, for `judge_recorded`. Raises RefusedTime if it
        cannot be read."""
        self.recorded[self.calls.turn].add(
            self._attempt(lambda: digest_of(out, self.backend)),
            lambda: self._read(out, self.cell.inputs, self.prepared),
        )

    def peak_bytes(self) -> int | None:
        """Returns the peak bytes of a call as the framework counts them; None if it does not."""
        with leaks.without_warnings():
            return self.backend.peak_bytes(self.calls, self.prepared)

    def kernels(self) -> str:
        """Returns the framework's names of the kernels that ran; "" if the framework does not name
        them."""
        try:
            with leaks.without_warnings():
                return self.backend.kernels(self.prepared)
        except Exception:
            return ""

    def _prepare(self, implementation: Implementation, inputs: Inputs) -> PreparedCall:
        if self.direction == "forward":
            return implementation.timed(inputs)
        return implementation.differentiable(inputs)

    def _sample_seconds(self, inner: int) -> float:
        """Returns the seconds of one call, averaged over `inner` calls. Records the last answer."""
        seconds, out = self._timed(self.calls, inner, self.slowdown)
        self.record(out)
        return seconds

    def _timed(self, call: Any, inner: int = 1, slow: float = 0.0) -> tuple[float, Any]:
        """Returns the seconds and the output of `Clock.timed`. Raises RefusedTime if a call raises."""
        return self._attempt(lambda: self.clock.timed(call, inner, slow))

    def _set_count(self) -> int:
        """Returns the number of sets of inputs."""
        size = (
            sum(array.size for array in self.cell.inputs.arrays.values()) * self.case.dtype.itemsize
        )
        return max(2, min(protocol.SETS, protocol.SETS_BYTES // max(size, 1)))

    def _record_extra_calls(self) -> None:
        """Record the answers of more calls: without them an error in one of 20 calls is often missed."""
        end = protocol.now() + protocol.EXTRA_SECONDS
        for _ in range(protocol.EXTRA_CALLS):
            self.record(self._timed(self.calls)[1])
            if protocol.now() > end:
                break

    def _attempt(self, call: Callable[[], Any]) -> Any:
        """Returns the result of `call()`. Its errors become RefusedTime or UnsupportedCall."""
        try:
            return self.cell.attempt(call)
        except NotApplicable as error:
            raise UnsupportedCall(str(error)) from error
        except WrongAnswer as error:
            raise RefusedTime(error.kind, error.message) from error

    def _cotangent(self, number: int) -> Any:
        """Returns the cotangent for the inputs of set `number`, as a native array; None for a forward
        call."""
        if self.direction == "forward":
            return None
        values = native_cotangent(self._cotangent_values(number), self.cell.inputs, self.prepared)
        return self.backend.array(np.ascontiguousarray(values), self.case.dtype)

    def _cotangent_values(self, number: int) -> np.ndarray:
        return draw_cotangent(self.case, self.cell.seed + FRESH_SEED * number)

    def _inputs(self, number: int) -> Inputs:
        """Returns the inputs of set `number`. Set 0 is the case's, other sets have new operands."""
        if not number:
            return self.cell.inputs
        drawn = draw(self.case, self.cell.seed + FRESH_SEED * number)
        return self.cell.inputs.replace(**{name: drawn.arrays[name] for name in drawn.operands})

    def _arguments(self, inputs: Inputs) -> Any:
        """Returns the native arguments of other inputs of the case."""
        implementation = self.implementation
        if isinstance(implementation, Compiled):
            # Only the arguments are new: the compiled program must be the one that is timed.
            return implementation.inner.prepare(inputs).arguments
        return self._prepare(implementation, inputs).arguments

    def _judge_new_inputs(self) -> None:
        """Compare the times of calls with new and old inputs, and judge the answer of the fastest call to
        new inputs. Raises RefusedTime.

        A busy machine slows some trials. A call that reuses results is slow in every trial.
        """
        median, first = statistics.median(self.samples or [math.inf]), protocol.SETS
        margin = protocol.STALE_SECONDS + self.clock.uncertainty
        # The framework may compile the product with the signs.
        call, _ = self._call_with(self.cell.inputs, self.prepared.arguments, self._cotangent(0))
        self._timed(call)
        for trial in range(protocol.TRIALS):
            if trial:
                protocol.pause(protocol.TRIAL_PAUSE * 2 ** (trial - 1))
            times = [self._time_inputs(first + n) for n in range(protocol.NEW_SETS)]
            first += protocol.NEW_SETS
            old_time, new_time = (min(seconds) for seconds in list(zip(*times, strict=True))[:2])
            limits = protocol.STALE_RATIO * old_time, protocol.STALE_SAMPLE_RATIO * median
            is_slow = new_time > min(limits)
            if not is_slow or new_time - min(old_time, median) <= margin:
                return min(times, key=lambda one: one[1])[2]()
        raise RefusedTime(
            "stale",
            f"calls with new inputs take {new_time * 1e3:.3g} ms, calls with known inputs "
            f"{old_time * 1e3:.3g} ms, samples took {median * 1e3:.3g} ms: the timed calls reused "
            "earlier results",
        )

    def _time_inputs(self, number: int) -> tuple[float, float, Callable[[], None]]:
        """Returns the seconds of a call with old inputs, the seconds of a call with the inputs of set
        `number`, and a function that judges the latter's answer."""
        drawn = self._inputs(number)
        arguments, cotangent = self._arguments(drawn), self._cotangent(number)
        warm_up, _ = self._call_with(drawn, arguments, cotangent)
        call, inputs = self._call_with(drawn, arguments, cotangent)
        compilations = self.backend.compilations(self.prepared)
        # Drawing inputs evicted the CPU caches, which were warm for the timed calls.
        if inputs is not drawn:
            self._timed(warm_up)
        self._timed(self.calls)
        old_time, _ = self._timed(self.calls)
        new_time, output = self._timed(call)
        if compilations != self.backend.compilations(self.prepared):
            raise RefusedTime("compiled", "inputs of the same shapes were compiled for anew")

        def judge() -> None:
            prepared = replace(self.prepared, arguments=arguments)
            self.cell.measured = Measured()
            reading = self._read(output, inputs, prepared)
            self._judge_values(reading, inputs, number, " (fresh inputs)")

        return old_time, new_time, judge

    def _call_with(self, inputs: Inputs, arguments: Any, cotangent: Any) -> tuple[Any, Inputs]:
        """Returns the answer to one call with these arguments, and the inputs that it answers. If
        possible the first operand has signs that only the clock knows (`Clock.signed_call`)."""
        name, prepared = inputs.operands[0], replace(self.prepared, arguments=arguments)
        is_integer = name in inputs.operator.array_kinds.integers
        if self.direction == "backward" or is_integer or prepared.argument(name) not in arguments:
            return self._attempt(lambda: self.step(arguments, cotangent)), inputs
        return self.clock.signed_call(inputs, name, self.step, prepared, cotangent)

    def _read(self, out: Any, inputs: Inputs, prepared: PreparedCall) -> ReturnedValues:
        """Returns copies of the values in `out`, the return value of a call."""
        cell, gradients = self.cell, None
        answer: Answer | None
        try:
            if self.direction == "forward":
                answer = cell.read(out, inputs, prepared)
            else:
                output, native = out
                answer = None if output is None else read_output(cell, output, inputs, prepared)
                values = read_gradients(cell, native, inputs, prepared, self.wrt)
                gradients = {name: array.copy() for name, array in values.items()}
        except (WrongAnswer, NotApplicable) as error:
            return ReturnedValues(failure=error)
        if answer is not None:
            answer = Answer({n: array.copy() for n, array in answer.arrays.items()}, None)
        return ReturnedValues(answer, gradients)

    def _judge_values(self, got: ReturnedValues, inputs: Inputs, number: int, suffix: str) -> None:
        """Judge the values by the oracle. Raises RefusedTime, whose message ends with `suffix`."""
        cell = self.cell
        try:
            if got.failure is not None:
                raise got.failure
            if got.output is not None:
                cell.judge(got.output, inputs)
            if got.gradients is not None:
                judge_gradients(cell, got.gradients, inputs, self._cotangent_values(number))
        except NotApplicable as error:
            raise UnsupportedCall(str(error)) from error
        except WrongAnswer as error:
            ratio = cell.measured.error_ratio
            raise RefusedTime(error.kind, error.message + suffix, ratio) from error
