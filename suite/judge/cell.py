"""The cell: one check on one case in one implementation, with what a check needs to judge it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from backends.protocol import ENDS, ForwardOnly, Implementation, PreparedCall
from suite.judge import answer, elections, refusal
from suite.judge.answer import Answer
from suite.judge.oracle import Oracle, Rounding
from suite.judge.verdict import (
    Deviation,
    HarnessError,
    Measured,
    NotApplicable,
    Refused,
    first_line,
)
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.dtypes import DType
from suite.spec.inputs import Inputs, draw, draw_cotangent
from suite.spec.levels import OPTIMIZED

if TYPE_CHECKING:
    from suite.judge.check import Check


class Cell:
    """One check x case x implementation."""

    def __init__(
        self, check: Check, case: AnyCase, implementation: Implementation, seed: int = 0
    ) -> None:
        self.check = check
        self.case = case
        self.implementation = implementation
        self.seed = seed
        self.measured = Measured()
        self.changed_settings: list[str] = []
        self.background_errors: list[str] = []

    @property
    def dtype(self) -> DType:
        return self.case.dtype

    @property
    def asks_optimized(self) -> bool:
        """True if the case belongs to the share of its check that frameworks' own code is asked with all
        optimisations at once (`OPTIMIZED`)."""
        one_of = OPTIMIZED.get(self.check.name)
        share = one_of is not None and crc32(self.case.id.encode()) % one_of == 0
        return share and not self.implementation.textbook

    @cached_property
    def inputs(self) -> Inputs:
        """The values drawn for the case."""
        if not isinstance(self.case, Case):
            raise HarnessError(f"{self.case.id} has no values of its own")
        return elections.aligned(draw(self.case, self.seed), self.implementation)

    @cached_property
    def cotangent(self) -> np.ndarray:
        """What the case's output is differentiated with: unit normals of its shape, the same for every
        implementation, whatever its causal flag means."""
        return draw_cotangent(self.inputs.case, self.seed, f"{self.case.id}/cotangent")

    def release(self) -> None:
        """Forget the drawn values: a run keeps thousands of cells."""
        for name in ("inputs", "cotangent"):
            self.__dict__.pop(name, None)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        """The implementation's call for these inputs.

        Raises NotApplicable where a variation of the case needs what the implementation lacks.
        """
        self.require(inputs)
        return self.implementation.prepare(inputs)

    def require(self, inputs: Inputs) -> None:
        """Raise NotApplicable where a variation needs what the case does not and the implementation
        lacks, and where it lies beyond the declared limits."""
        if isinstance(self.case, Case) and inputs is not self.inputs:
            own, implementation = self.case.needs, self.implementation
            missing = implementation.missing(n for n in inputs.needs if n not in own)
            if missing is None and inputs.sizes != self.inputs.sizes:
                limits = implementation.declared.limits_for(self.dtype)
                missing = limits.refusal(inputs.sizes)
            if missing is not None:
                raise NotApplicable(missing)
            self.require_answer(inputs)

    def require_answer(self, inputs: Inputs) -> None:
        """Raise NotApplicable if a person's function elects to raise for these inputs."""
        if not self.implementation.declared.is_user_code:
            return
        question = elections.raising(inputs, self.implementation)
        if question:
            raise self.refused(question, f"raises, and is observed to do so always ({question})")

    def call(self, prepared: PreparedCall) -> Any:
        """The framework's output. Raises Deviation "raised" with what the framework raised."""
        return self.attempt(prepared)

    def attempt(self, call: Callable[[], Any]) -> Any:
        """What the framework returns. Raises Deviation "raised" with what it raised, and NotApplicable
        where it was a refusal that the implementation may give: to differentiate, or of a person's own
        function any (see `suite.judge.refusal`)."""
        try:
            return call()
        except ForwardOnly as error:
            if error.declared or self.implementation.declared.may_be_forward_only:
                raise NotApplicable(f"forward only: {error}") from error
            raise Deviation("raised", first_line(error)) from error
        except ENDS:
            raise
        except BaseException as error:
            raise refusal.outcome(self.implementation, error) from error

    def read(
        self, native: Any, inputs: Inputs, prepared: PreparedCall, names: Sequence[str] = ()
    ) -> Answer:
        """Judge type, device, dtype and shape of what came back, and read its values: the outputs called
        `names`, by default all."""
        return answer.read(self.implementation.backend, native, inputs, prepared, names)

    def run(self, inputs: Inputs | None = None) -> Answer:
        """Prepare, call and read in one step; `inputs` defaults to the case's own."""
        inputs = self.inputs if inputs is None else inputs
        prepared = self.prepare(inputs)
        return self.read(self.call(prepared), inputs, prepared)

    @property
    def numerics(self) -> str:
        """The numerics class declared for the cell's dtype."""
        return self.implementation.numerics_for(self.dtype)

    @property
    def flushes(self) -> bool:
        """Whether subnormals are flushed to zero, as elected. Layers are not asked: no value of their
        cases is near the smallest normal number, but for weights, and nobody was seen to flush those
        of float16; in the other dtypes it makes no difference."""
        if "subnormal-output" in self.case.operator.questions.elections:
            return self.elected("subnormal-output") == "flushed"
        return self.dtype.name != "f16"

    @property
    def rounding(self) -> Rounding:
        """Where the implementation rounds, as declared."""
        implementation = self.implementation
        backend = implementation.backend
        cut = self.case.operator.has_keys and self.dtype.name in backend.truncates_matmul
        return Rounding(
            self.numerics, self.flushes, implementation.declared, backend.narrow_reductions, cut
        )

    def elected(self, question: str) -> str:
        """The answer declared in the cell's dtype or, where none is, the one observed."""
        return elections.elected(question, self.implementation, self.dtype)

    def rows(self, inputs: Inputs) -> str:
        """What the implementation elects for the rows of `inputs` that have no key.

        Raises NotApplicable for an answer that no reference gives, and for two answers.
        """
        if not inputs.has_empty_rows:
            return "zeros"
        questions = elections.questions_of_rows(inputs, self.implementation)
        answers = {self.elected(question): question for question in questions}
        if len(answers) > 1:
            raise NotApplicable(
                f"elects {' and '.join(answers)} for rows without keys of two kinds"
            )
        ((elected, question),) = answers.items()
        text = f"elects {elected!r} for rows without keys ({question})"
        if elected == "raises":
            raise self.refused(question, text)
        if elected in ("other", "unsupported"):
            raise NotApplicable(text)
        return elected

    def refused(self, question: str, text: str) -> NotApplicable:
        """What a cell raises that asks for what the implementation elects to raise on; `text` says so. A
        person's function refuses it, unless the election is promised."""
        promised = self.implementation.elected(question, self.dtype) is not None
        refuses = self.implementation.declared.is_user_code and not promised
        return (Refused if refuses else NotApplicable)(text)

    def sees(self, inputs: Inputs) -> np.ndarray:
        """Which keys a row may see, boolean (B, H, Lq, Lk): those it attends. A row without keys sees
        none if zeros or NaN are elected for it, and may see all otherwise."""
        if not inputs.has_empty_rows:
            return inputs.attends
        try:
            blind = self.rows(inputs) in ("zeros", "nan")
        except NotApplicable:
            blind = False
        return inputs.attends if blind else inputs.attends | inputs.fully_masked_rows[..., None]

    def oracle(self, inputs: Inputs | None = None, numerics: str | None = None) -> Oracle:
        """The oracle of `inputs` under the implementation's elections, in its class or another.

        Raises NotApplicable where the layer has parameters of its own, which no oracle knows.
        """
        if not self.implementation.declared.takes_parameters:
            raise NotApplicable("the layer takes no parameters: only what needs none is judged")
        inputs = self.inputs if inputs is None else inputs
        if inputs.dtype is not self.dtype:
            # A path whose operands are widened answers as in the wider dtype.
            other = Cell(self.check, inputs.case, self.implementation, self.seed)
            return other.oracle(inputs, numerics)
        oracle = Oracle.forward(inputs, self.rounding, self.rows(inputs))
        return oracle if numerics is None else oracle.in_class(numerics)

    def bound(self, inputs: Inputs) -> np.ndarray:
        """The bound of the implementation's class on its output for `inputs`."""
        return self.oracle(inputs).bound()

    def judge(
        self, answer: Answer, inputs: Inputs | None = None, numerics: str | None = None
    ) -> None:
        """Hold an answer against the oracle; raises Deviation "value" or "non-finite".

        `numerics` is the class to hold it to, by default the one declared.
        """
        oracle = self.oracle(inputs, numerics)
        try:
            measured = oracle.judge(answer.arrays)
        except Deviation as deviation:
            self.measured.worst_of(deviation.measured)
            raise
        self.measured.worst_of(measured)

    def refuse_what_is_elected(self) -> None:
        """Raise NotApplicable where the case lies beyond what the implementation elects to answer."""
        case = self.case
        overflows = isinstance(case, Case) and case.recipe == "overflow"
        if overflows and self.elected("score-overflow") != "finite":
            raise NotApplicable("elects that unscaled scores overflow in float16")
        if isinstance(case, Case):
            self.require_answer(self.inputs)
