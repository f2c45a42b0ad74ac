"""The cell: one check of one case in one implementation, with the tools that a check uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from attention_conformance.backends.protocol import ENDS, ForwardOnly, Implementation, PreparedCall
from attention_conformance.suite.judge import answer, elections, refusal
from attention_conformance.suite.judge.answer import Answer
from attention_conformance.suite.judge.comparison import first_index
from attention_conformance.suite.judge.elections import lse
from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.judge.verdict import (
    HarnessError,
    Measured,
    NotApplicable,
    Refused,
    WrongAnswer,
    first_line,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent
from attention_conformance.suite.spec.levels import AS_CALLED, OPTIMIZED

if TYPE_CHECKING:
    from attention_conformance.suite.judge.check import Check


class Cell:
    """One check x case x implementation. `changed_settings` and `background_errors` are the leaks of its
    last run. `answered` holds the digests of problems that a user function has answered in this cell."""

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
        self.answered: set[bytes] = set()

    @property
    def dtype(self) -> DType:
        return self.case.dtype

    @property
    def asks_optimized(self) -> bool:
        """True if the first run of the cell is compiled with all optimisations. In each check one of so
        many cells is: see `OPTIMIZED`, and for float32 cells of user functions `AS_CALLED`, too. Never
        for textbook code."""
        is_user_code = self.implementation.declared.is_user_code
        if is_user_code and self.dtype.name != "f32":
            return False
        one_in = (OPTIMIZED | AS_CALLED if is_user_code else OPTIMIZED).get(self.check.name)
        is_selected = one_in is not None and crc32(self.case.id.encode()) % one_in == 0
        return is_selected and not self.implementation.textbook

    @cached_property
    def inputs(self) -> Inputs:
        """The inputs that are drawn for the case, in the form that the implementation's causal flag
        means. Raises HarnessError if the case has no inputs."""
        if not isinstance(self.case, Case):
            raise HarnessError(f"{self.case.id} has no values of its own")
        return elections.with_flag_mask(draw(self.case, self.seed), self.implementation)

    @cached_property
    def cotangent(self) -> np.ndarray:
        """The cotangent of the output: unit normals of the output's shape, the same for every
        implementation."""
        return draw_cotangent(self.inputs.case, self.seed, f"{self.case.id}/cotangent")

    def release(self) -> None:
        """Forget the drawn values: a run keeps thousands of cells."""
        for name in ("inputs", "cotangent"):
            self.__dict__.pop(name, None)

    def prepare(self, inputs: Inputs) -> PreparedCall:
        """Returns the implementation's call for these inputs. Raises as `require`."""
        self.require(inputs)
        prepared = self.implementation.prepare(inputs)
        return replace(prepared, problem=prepared.problem or inputs)

    def require(self, inputs: Inputs) -> None:
        """Raise NotApplicable if `inputs` are a variation of the cell's own inputs that the
        implementation cannot answer: a feature is lacking, a declared limit is exceeded, or a user
        function elects to raise."""
        if isinstance(self.case, Case) and inputs is not self.inputs:
            case_needs, implementation = {*self.case.needs}, self.implementation
            if inputs.mask_array is not None:
                case_needs -= {"mask"}  # the mask of the case may be a flag
            missing = implementation.missing(n for n in inputs.needs if n not in case_needs)
            if missing is None and inputs.sizes != self.inputs.sizes:
                limits = implementation.declared.limits_for(self.dtype)
                missing = limits.refusal(inputs.sizes)
            if missing is not None:
                raise NotApplicable(missing)
            self.require_answer(inputs)

    def require_answer(self, inputs: Inputs) -> None:
        """Raise NotApplicable if a user function elects to raise for these inputs."""
        if not self.implementation.declared.is_user_code:
            return
        question = elections.question_that_raises(inputs, self.implementation)
        if question:
            raise self.refused(question, f"raises, and is observed to do so always ({question})")

    def call(self, prepared: PreparedCall) -> Any:
        """Calls the implementation, and returns the framework's return value. Raises the errors of
        `attempt`, and WrongAnswer "stale" if a user function refuses a problem that it answered before in
        this cell. Adds the problem's digest to `answered`."""
        is_user_code = self.implementation.declared.is_user_code
        digest = prepared.problem.digest if is_user_code and prepared.problem is not None else b""
        try:
            native = self.attempt(prepared)
        except Refused as refused:
            is_stale = digest in self.answered
            raise (refusal.stale_deviation(refused) if is_stale else refused) from None
        self.answered |= {digest} - {b""}
        return native

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Calls `call`, and returns its return value. Raises:

        - NotApplicable if a derivative is refused, and the implementation may be forward only.
        - Refused if a user function refuses the case (see `suite.judge.refusal`), in a second call, too.
        - WrongAnswer "stale" if the user function answers the second call.
        - WrongAnswer "forbidden" if the user function makes a forbidden call.
        - WrongAnswer "raised" for any other error.
        """
        try:
            return call()
        except ForwardOnly as error:
            # A forward call that raises this is a failure.
            differentiates = not isinstance(call, PreparedCall)
            declared = error.declared or self.implementation.declared.may_be_forward_only
            if differentiates and declared:
                raise NotApplicable(f"forward only: {error}") from error
            raise WrongAnswer("raised", first_line(error)) from error
        except ENDS:
            raise
        except BaseException as error:
            outcome = refusal.outcome(self.implementation, error)
            if isinstance(outcome, Refused) and refusal.call_returns(call):
                outcome = refusal.stale_deviation(outcome)
            raise outcome from error

    def read(
        self, native: Any, inputs: Inputs, prepared: PreparedCall, names: Sequence[str] = ()
    ) -> Answer:
        """Check the type, device, dtype and shape of the return value `native`. Returns the outputs
        called `names`, by default all. Raises WrongAnswer."""
        return answer.read_answer(self.implementation.backend, native, inputs, prepared, names)

    def run(self, inputs: Inputs | None = None) -> Answer:
        """Prepare the call, call, and read the outputs. `inputs` are by default those of the cell."""
        inputs = self.inputs if inputs is None else inputs
        prepared = self.prepare(inputs)
        return self.read(self.call(prepared), inputs, prepared)

    @property
    def numerics(self) -> str:
        """The numerics class that is declared for the cell's dtype."""
        return self.implementation.numerics_for(self.dtype)

    @property
    def flushes(self) -> bool:
        """True if the implementation elects to flush subnormals to zero. False if the question has no
        valid answer: the check `election` reports that. Operators without this question, such as layers,
        count as flushing in every dtype but float16."""
        if "subnormal-output" not in self.case.operator.questions.elections:
            return self.dtype.name != "f16"
        try:
            return self.elected_answer("subnormal-output") == "flushed"
        except WrongAnswer:
            return False

    @property
    def rounding(self) -> Rounding:
        """The roundings that the implementation and its backend declare."""
        implementation = self.implementation
        declared = implementation.backend.rounding.joined(implementation.declared.rounding)
        if not self.case.operator.has_keys:
            declared = replace(declared, truncates_matmul=())
        return Rounding(self.numerics, self.flushes, declared)

    def elected_answer(self, question: str) -> str:
        """Returns the answer to an election question: the declared answer, or else the observed one."""
        return elections.elected_answer(question, self.implementation, self.dtype)

    def elected_rows(self, inputs: Inputs) -> str:
        """Returns the elected value of the fully masked rows of `inputs`, such as "uniform". "zeros" if
        there are no such rows, "unread" (not judged) if the operator packs samples.

        Raises NotApplicable if the implementation elects to raise, or if two kinds of such rows have
        different values.
        """
        if not inputs.has_empty_rows:
            return "zeros"
        if inputs.operator.packing is not None:
            return "unread"
        questions = elections.questions_of_rows(inputs, self.implementation)
        question_by_answer = {self.elected_answer(question): question for question in questions}
        if len(question_by_answer) > 1:
            raise NotApplicable(
                f"elects {' and '.join(question_by_answer)} for rows without keys of two kinds"
            )
        ((answer, question),) = question_by_answer.items()
        message = f"elects {answer!r} for rows without keys ({question})"
        if answer == "raises":
            raise self.refused(question, message)
        return answer

    def refused(self, question: str, message: str) -> NotApplicable:
        """Returns the exception for a cell in which the implementation elects to raise: Refused for a
        user function that does not promise this election, else NotApplicable."""
        is_promised = self.implementation.declared_answer(question, self.dtype) is not None
        is_refusal = self.implementation.declared.is_user_code and not is_promised
        return (Refused if is_refusal else NotApplicable)(message)

    def visible_keys(self, inputs: Inputs) -> np.ndarray:
        """Returns a boolean array (B, H, Lq, Lk), True if the key may influence the row. These are the
        attended pairs. In fully masked rows all pairs are True, unless zeros or NaN are elected for such
        rows."""
        if not inputs.has_empty_rows:
            return inputs.attends
        try:
            constant = self.elected_rows(inputs) in ("zeros", "nan")
        except NotApplicable:
            constant = False
        return inputs.attends if constant else inputs.attends | inputs.fully_masked_rows[..., None]

    def oracle(self, inputs: Inputs | None = None, numerics: str | None = None) -> Oracle:
        """Returns the oracle of `inputs` (by default the cell's) under the implementation's elections.
        `numerics` is the class of the bounds, by default the declared one.

        Raises NotApplicable if a layer cannot take parameters: no oracle knows its own parameters.
        """
        if not self.implementation.declared.takes_parameters:
            raise NotApplicable("the layer takes no parameters: only what needs none is judged")
        inputs = self.inputs if inputs is None else inputs
        if inputs.dtype is not self.dtype:
            # A path that widens its operands is judged in the wider dtype.
            cell = Cell(self.check, inputs.case, self.implementation, self.seed)
            return cell.oracle(inputs, numerics)
        oracle = Oracle.forward(inputs, self.rounding, self.elected_rows(inputs))
        return oracle if numerics is None else oracle.in_class(numerics)

    def bound(self, inputs: Inputs) -> np.ndarray:
        """Returns the bounds of the output's elements for `inputs`, in the declared numerics class."""
        return self.oracle(inputs).bound()

    def judge(
        self, answer: Answer, inputs: Inputs | None = None, numerics: str | None = None
    ) -> None:
        """Compare an answer with the oracle of `inputs`, and record the figures in `measured`. Raises
        WrongAnswer "value" or "non-finite". Arguments as in `oracle`.
        """
        oracle = self.oracle(inputs, numerics)
        try:
            measured = oracle.judge(answer.arrays)
        except WrongAnswer as deviation:
            self.measured.worst_of(deviation.measured)
            raise
        self.measured.worst_of(measured)
        if "lse" in answer.arrays and oracle.inputs.has_empty_rows:
            self.judge_lse_of_empty_rows(answer.arrays["lse"], oracle)

    def judge_lse_of_empty_rows(self, got: np.ndarray, oracle: Oracle) -> None:
        """Raise WrongAnswer "election" if the log-sum-exp `got` (B, H, Lq) of a fully masked row is
        wrong. Right are the elected value, and values that agree with the output of such rows."""
        inputs = oracle.inputs
        names = {*lse.AGREES[oracle.rows], self.elected_answer("lse-of-empty-row")}
        right = np.logical_or.reduce([lse.VALUES[n](got) for n in names & lse.VALUES.keys()])
        wrong = inputs.fully_masked_rows & ~right
        if wrong.any() and "all-keys" not in names:
            at = first_index(wrong)
            raise WrongAnswer(
                "election",
                f"element {at} of the log-sum-exp, of a row without keys: got {float(got[at])!r}; right "
                f"beside {oracle.rows}: {', '.join(sorted(names))}",
            )

    def require_elected_answer(self) -> None:
        """Raise NotApplicable if the implementation elects to give no answer to the cell's case."""
        case = self.case
        overflows = isinstance(case, Case) and case.recipe == "overflow"
        if overflows and self.elected_answer("score-overflow") != "finite":
            raise NotApplicable("elects that unscaled scores overflow in float16")
        if isinstance(case, Case):
            self.require_answer(self.inputs)
