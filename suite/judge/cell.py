"""Run one cell: one check on one case in one implementation.

A check is a function of a `Cell`. It returns where the promise holds and raises `Deviation` where it
does not. The same functions serve pytest (`suite.plugin`) and the programs that judge without it.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from suite.judge.oracle import Oracle
from suite.judge.verdict import Deviation, HarnessError, Measured, NotElected, Verdict
from suite.spec.catalogue import AnyCase, parse
from suite.spec.dtypes import DTYPES, DType
from suite.spec.layers import LayerCase
from suite.spec.problem import Case, Inputs
from suite.spec.recipes import draw

if TYPE_CHECKING:
    from backends.base import Implementation, Prepared


@dataclass(frozen=True)
class Check:
    """A promise: its name, the function that judges it, the cases of a level it is asked on, the kind
    of cell the function takes, the features it needs besides those of its cases, and the cases of a
    level it is asked on of compiled implementations, which pay for every new shape; None for none."""

    name: str
    function: Callable[[Any], None]
    cases: Callable[[str], Iterable[AnyCase]]
    cell: type[Cell]
    needs: tuple[str, ...] = ()
    compiled: Callable[[str], Iterable[AnyCase]] | None = None

    def cells(
        self, level: str, implementations: Sequence[Implementation], seed: int = 0
    ) -> Iterator[Cell]:
        """The cells of the level, case by case: every implementation is asked what its operator is."""
        eager = [i for i in implementations if i.mode == "eager"]
        compiled = [i for i in implementations if i.mode != "eager"]
        for cases, asked in ((self.cases, eager), (self.compiled, compiled)):
            for case in cases(level) if cases and asked else ():
                for implementation in asked:
                    if implementation.operator == case.operator:
                        yield self.cell(self, case, implementation, seed)

    def unsupported(self, implementation: Implementation, case: AnyCase) -> str | None:
        """Why the implementation cannot be asked this on the case, or None. Runs nothing."""
        return implementation.unsupported(case) or implementation.missing(self.needs)


def check(
    cases: Callable[[str], Iterable[AnyCase]],
    cell: type[Cell] | None = None,
    needs: tuple[str, ...] = (),
    compiled: Callable[[str], Iterable[AnyCase]] | None = None,
) -> Callable[[Callable], Callable]:
    """Mark a test function as a check on the cases that `cases(level)` gives.

    The check is called what the function is, without `test_`. `cell` is the kind of cell it takes, by
    default `Cell`; `needs` the features it needs besides those of its cases, `compiled` the cases of a
    level that it is asked on of compiled implementations.
    """

    def mark(function: Callable[[Any], None]) -> Callable[[Any], None]:
        name = function.__name__.removeprefix("test_")
        function.check = Check(name, function, cases, cell or Cell, needs, compiled)  # type: ignore[attr-defined]
        return function

    return mark


def in_every_dtype(*patterns: str) -> Callable[[str], list[AnyCase]]:
    """The cases whose ids are `patterns` with {dt} replaced: float32 and bfloat16 at smoke, else all."""

    def found(level: str) -> list[AnyCase]:
        names = ("f32", "bf16") if level == "smoke" else DTYPES
        return [parse(p.replace("{dt}", dt)) for p in patterns for dt in names]

    return found


@dataclass(frozen=True)
class Answer:
    """An implementation's output: the framework's own array, and its values (B, H, Lq, Dv)."""

    native: Any
    values: np.ndarray


class Cell:
    """One check x case x implementation, with what a check needs to judge it."""

    def __init__(
        self, check: Check, case: AnyCase, implementation: Implementation, seed: int = 0
    ) -> None:
        self.check = check
        self.case = case
        self.implementation = implementation
        self.seed = seed
        self.audit = False
        self.measured = Measured()

    @property
    def dtype(self):  # type: ignore[no-untyped-def]
        return self.case.dtype

    @cached_property
    def inputs(self) -> Inputs:
        """The values drawn for the case. A variation is made with `dataclasses.replace`."""
        if not isinstance(self.case, Case):
            raise HarnessError(f"{self.case.id} is no value case and has no inputs of its own")
        return draw(self.case, self.seed)

    def prepare(self, inputs: Any) -> Prepared:
        """The implementation's call for these inputs.

        Raises NotElected where a variation of the case needs what the implementation lacks.
        """
        if isinstance(self.case, Case) and not self.audit:
            missing = self.implementation.missing(inputs.needs)
            if missing is not None:
                raise NotElected(missing)
        return self.implementation.prepare(inputs)

    def call(self, prepared: Prepared) -> Any:
        """The framework's output. Raises Deviation "raised" with what the framework raised."""
        return self.attempt(prepared)

    def attempt(self, call: Callable[[], Any]) -> Any:
        """What the framework returns. Raises Deviation "raised" with what it raised, and NotElected
        where it was a refusal to differentiate that the implementation may give."""
        try:
            return call()
        except (Exception, SystemExit) as error:
            # The adapters' ForwardOnly, which no judge imports.
            declared = getattr(error, "declared", None)
            if declared or (declared is not None and self.implementation.may_be_forward_only):
                raise NotElected(f"forward only: {error}") from error
            # JAX adds notes and tracebacks to exceptions; one line is what people compare.
            # TensorFlow's functions begin theirs with the place and end it with what happened.
            lines = str(error).strip().splitlines() or [""]
            text = lines[-1].strip() if lines[0].endswith("in user code:") else lines[0]
            raise Deviation("raised", f"{type(error).__name__}: {text[:300]}") from error

    def read(self, native: Any, inputs: Inputs, layout: str) -> Answer:
        """Judge type, device, dtype and shape, and return the values (B, H, Lq, Dv) in float64."""
        s = inputs.sizes
        expected = (s.B, s.H, s.Lq, s.Dv) if layout == "bhld" else (s.B, s.Lq, s.H, s.Dv)
        values = self.read_array("", native, expected, inputs.dtype)
        return Answer(native, values if layout == "bhld" else values.swapaxes(1, 2))

    def read_array(
        self, what: str, native: Any, shape: tuple[int, ...], dtype: DType
    ) -> np.ndarray:
        """Judge an array's type, device, dtype and shape, and return its values in float64.

        `what` names it in messages. Raises Deviation.
        """
        backend = self.implementation.backend
        place = f" of {what}" if what else ""
        if not backend.is_array(native):
            got_type = f"{type(native).__module__}.{type(native).__qualname__}"
            named = f" as {what}" if what else ""
            raise Deviation("type", f"expected an array of {backend.name}{named}, got {got_type}")
        for kind, want, got in (
            ("device", backend.device, backend.device_name(native)),
            ("dtype", dtype.long_name, backend.dtype_name(native)),
            ("shape", shape, tuple(native.shape)),
        ):
            if want != got:
                raise Deviation(kind, f"expected {kind} {want}{place}, got {got}")
        return backend.to_numpy(native)

    def run(self, inputs: Any = None) -> Answer:
        """Prepare, call and read in one step; `inputs` defaults to the case's own."""
        inputs = self.inputs if inputs is None else inputs
        prepared = self.prepare(inputs)
        return self.read(self.call(prepared), inputs, prepared.layout)

    def empty_rows(self, inputs: Inputs) -> str:
        """What the implementation elects for the rows of `inputs` that have no key."""
        if not inputs.has_empty_rows:
            return "zeros"
        mask = inputs.dense_mask
        by_mask = mask is not None and not mask.any(-1).all()
        if inputs.bias is not None and self.implementation.merges_mask_into_bias:
            by_mask = False
        question = "fully-masked-row" if by_mask else "minus-inf-row"
        answer = self.elected(question)
        if answer == "raises":
            raise NotElected(f"elects to raise on rows without keys ({question})")
        return answer

    def oracle(self, inputs: Inputs | None = None) -> Oracle:
        """The oracle of `inputs` under the implementation's elections."""
        inputs = self.inputs if inputs is None else inputs
        elected = self.empty_rows(inputs)
        return Oracle.of(inputs, "uniform" if elected == "uniform" else "zeros")

    def release(self) -> None:
        """Forget the drawn inputs: a run keeps thousands of cells."""
        self.__dict__.pop("inputs", None)

    @property
    def numerics(self) -> str:
        """The numerics class declared for the cell's dtype."""
        return self.implementation.numerics_for(self.dtype)

    @property
    def exp_error(self) -> float:
        """The declared relative error of the implementation's exponential in the cell's dtype."""
        return self.implementation.exp_error.get(self.dtype.name, 0.0)

    @property
    def flushes(self) -> bool:
        """Whether subnormals are elected to be flushed to zero."""
        return self.elected("subnormal-output") == "flushed"

    def elected(self, question: str) -> str:
        """The answer declared in the cell's dtype or, where none is, the one observed."""
        answer = self.implementation.elected(question, self.dtype)
        return answer or observe(question, self.implementation, self.dtype)

    def refuse_what_is_elected(self) -> None:
        """Raise NotElected where the case lies beyond what the implementation elects to answer."""
        case = self.case
        overflows = isinstance(case, Case) and case.recipe == "overflow"
        if overflows and self.elected("score-overflow") != "finite":
            raise NotElected("elects that unscaled scores overflow in float16")

    def bound(self, inputs: Inputs) -> np.ndarray:
        """The bound of the implementation's class on its answer to `inputs`."""
        return self.oracle(inputs).bound(self.numerics, self.flushes, self.exp_error)

    def judge(
        self, answer: Answer, inputs: Inputs | None = None, numerics: str | None = None
    ) -> None:
        """Hold an answer against the oracle; raises Deviation "value" or "non-finite".

        `numerics` is the class to hold it to, by default the one declared.
        """
        inputs = self.inputs if inputs is None else inputs
        elected = self.empty_rows(inputs)
        try:
            found = self.oracle(inputs).judge(
                answer.values,
                numerics or self.numerics,
                flushes=self.flushes,
                exp_error=self.exp_error,
                nan_rows=elected,
            )
        except Deviation as deviation:
            self.measured.worst_of(getattr(deviation, "measured", Measured()))
            raise
        self.measured.worst_of(found)

    def expect_bitwise(self, got: np.ndarray, want: np.ndarray, kind: str, what: str) -> None:
        """Raise Deviation `kind` unless two arrays are bitwise equal (NaN equals NaN)."""
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        if not same.all():
            at = tuple(int(i) for i in np.argwhere(~same)[0])
            raise Deviation(
                kind,
                f"{what}: element {at} changed from {float(want[at])!r} to {float(got[at])!r}; "
                f"{int((~same).sum())} of {same.size} elements differ",
            )

    def expect_close(self, got: np.ndarray, want: np.ndarray, limit: np.ndarray, what: str) -> None:
        """Raise Deviation "unequal" where two answers to one problem differ by more than `limit`.

        `limit` is the sum of the bounds of the two answers.
        """
        both_nan = np.isnan(got) & np.isnan(want)
        difference = np.where(both_nan | (got == want), 0.0, np.abs(got - want))
        beyond = ~(difference <= limit)
        if beyond.any():
            excess = np.where(np.isnan(difference), np.inf, difference - limit)
            at = tuple(int(i) for i in np.unravel_index(int(np.argmax(excess)), excess.shape))
            raise Deviation(
                "unequal",
                f"{what}: element {at} is {float(got[at])!r} in one form, {float(want[at])!r} in "
                f"the other; bounds allow a difference of {float(limit[at]):.3g}; "
                f"{int(beyond.sum())} of {beyond.size} elements differ by more",
            )


_OBSERVED: WeakKeyDictionary[Implementation, dict[tuple[str, str], str]] = WeakKeyDictionary()


def observe(question: str, implementation: Implementation, dtype: Any) -> str:
    """The answer to an election question as observed by running its probe once."""
    from suite.judge.elections import probe

    answers = _OBSERVED.setdefault(implementation, {})
    key = (question, dtype.name)
    if key not in answers:
        answers[key] = probe(question, implementation, dtype)
    return answers[key]


def run(cell: Cell, audit: bool = False) -> Verdict:
    """Judge one cell.

    Returns `unsupported` without running where the implementation declares so; with `audit` such a
    cell runs as well, and a right answer is the failure "stale-claim". What a backend lacks for all its
    implementations cannot be asked of it, and is not audited.

    Where a program that was compiled for an earlier cell took part in anything but a pass, the verdict
    is that of a second run, with programs of its own.
    """
    start = time.perf_counter()
    implementation = cell.implementation
    implementation.settle(False)  # of a cell that was broken off
    verdict = _judged(cell, audit)
    if implementation.settle(verdict.status == "pass") and verdict.status != "pass":
        cell.measured = Measured()
        verdict = _judged(cell, audit)
        implementation.settle(verdict.status == "pass")
    return replace(verdict, seconds=time.perf_counter() - start)


def _judged(cell: Cell, audit: bool) -> Verdict:
    """The verdict of one run of the cell; its seconds are left to `run`."""

    def verdict(status: str, kind: str = "", message: str = "") -> Verdict:
        return Verdict(status, kind, message, replace(cell.measured))

    cell.audit = audit
    reason = None
    try:
        reason = cell.check.unsupported(cell.implementation, cell.case)
        audited = audit and isinstance(cell.case, Case | LayerCase)
        audited = audited and reason not in cell.implementation.backend.lacks.values()
        if reason is not None and not audited:
            return verdict("unsupported", "", reason)
        # Whether a warning is an error is for the caller's tests, and no property of a kernel.
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cell.refuse_what_is_elected()
            cell.check.function(cell)
    except NotElected as elected:
        return verdict("unsupported", "", str(elected))
    except Deviation as deviation:
        if reason is not None:
            return verdict("unsupported", "", reason)
        return verdict("fail", deviation.kind, deviation.message)
    except Exception as error:
        if reason is not None:
            return verdict("unsupported", "", reason)
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno}"
        return verdict("error", "harness", f"{type(error).__name__}: {error} ({where})")
    if reason is not None and cell.measured.error_ratio is None:
        # Nothing was held against the oracle: what is not supported may well be ignored.
        return verdict("unsupported", "", reason)
    if reason is not None:
        return verdict(
            "fail", "stale-claim", f"declared unsupported ({reason}), yet the answer is right"
        )
    return verdict("pass")
