"""Elections: what implementations answer where the field has no single right answer.

`elected` is what is declared or, where nothing is, what is observed by running a probe once.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import reduce
from operator import and_
from weakref import WeakKeyDictionary

from backends.protocol import Implementation
from suite.judge.elections.probe import Probe
from suite.judge.elections.questions import PROBES
from suite.judge.verdict import Deviation, NotApplicable
from suite.spec.dtypes import DType
from suite.spec.elections import QUESTIONS
from suite.spec.inputs import Inputs
from suite.spec.masks import Causal

_OBSERVED: WeakKeyDictionary[Implementation, dict[tuple[str, str], str]] = WeakKeyDictionary()


def elected(question: str, implementation: Implementation, dtype: DType) -> str:
    """The answer declared in a dtype or, where none is, the one observed."""
    return implementation.elected(question, dtype) or observe(question, implementation, dtype)


def of_native(question: str, implementation: Implementation, dtype: DType) -> str:
    """What the framework's own attention answers, beside which a person's function is shown; "" where
    there is none, or where it is not asked."""
    native = implementation.beside
    if native is None:
        return ""
    try:
        return elected(question, native, dtype)
    except (Deviation, NotApplicable):
        return ""


def observe(question: str, implementation: Implementation, dtype: DType) -> str:
    """The answer to a question as observed by running its probe once. What is not declared, cells are
    judged by: it is observed of programs as people compile them.

    Raises Deviation "election" where the answer is none of the question's options, Deviation "raised" for
    an error that answers nothing (see `any_error_answers`), and NotApplicable where the implementation
    lacks what the probe needs.
    """
    answers = _OBSERVED.setdefault(implementation, {})
    key = (question, dtype.name)
    if key not in answers:
        declared = implementation.elected(question, dtype) is not None
        probe = Probe(
            implementation,
            dtype,
            any_error=any_error_answers(question, implementation, dtype),
            may_refuse="raises" in QUESTIONS[question].options,
        )
        with nullcontext() if declared else implementation.backend.quickly(False):
            answers[key] = PROBES[question](probe)
    return answers[key]


def any_error_answers(question: str, implementation: Implementation, dtype: DType) -> bool:
    """Whether any error answers a question, and not those alone that refuse the call: where an answer is
    declared, where the framework's own attention raises, too, and where a framework's elections are
    observed on a device, since none are verified there."""
    if implementation.elected(question, dtype) is not None:
        return True
    if implementation.declared.person:
        return of_native(question, implementation, dtype) == "raises"
    return implementation.backend.device != "cpu"


def forget(implementation: Implementation) -> None:
    """Forget what was observed of an implementation: it is to be observed anew."""
    _OBSERVED.pop(implementation, None)


def question_of_rows(inputs: Inputs, implementation: Implementation) -> str:
    """Which question tells what rows without keys give: whose mask, or whose bias, empties them."""
    mask = inputs.dense_mask
    by_mask = mask is not None and not mask.any(-1).all()
    if inputs.bias is not None and implementation.declared.merges_mask_into_bias:
        by_mask = False
    if not by_mask:
        return "minus-inf-row"
    return "padded-sample" if _by_lengths(inputs) else "fully-masked-row"


def question_of_gradients(inputs: Inputs, implementation: Implementation) -> str:
    """Which question tells where the cotangents of rows without keys go: the one that belongs to the
    question of their answers. A layer is asked none about rows that a bias empties."""
    question = f"{question_of_rows(inputs, implementation)}-gradient"
    return question if question in inputs.operator.elections else "fully-masked-row-gradient"


def _by_lengths(inputs: Inputs) -> bool:
    """Whether a layer is told which keys are padding, by a mask of its own."""
    return inputs.operator.is_layer and inputs.mask is not None and inputs.form == "native"


def alignment(inputs: Inputs, implementation: Implementation) -> str:
    """How the causal flag is aligned where these inputs are passed by it; "" where they are not, or where
    the alignment makes no difference."""
    sizes, parts = inputs.sizes, inputs.mask.parts if inputs.mask is not None else ()
    flagged = inputs.form == "native" and sizes.Lq != sizes.Lk and Causal() in parts
    elective = "causal-alignment" in inputs.operator.elections
    if not flagged or not elective or implementation.missing(["native-causal"]) is not None:
        return ""
    try:
        return elected("causal-alignment", implementation, inputs.dtype)
    except (Deviation, NotApplicable):
        return "top-left"


def aligned(inputs: Inputs, implementation: Implementation) -> Inputs:
    """The inputs as the implementation's causal flag means them: with the mask that is bottom-right where
    it elects so; with the mask as an array where it elects to raise, and takes arrays."""
    flag = alignment(inputs, implementation)
    if flag == "bottom-right" and inputs.mask is not None:
        parts = [Causal(True) if part == Causal() else part for part in inputs.mask.parts]
        return inputs.replace(mask=reduce(and_, parts), form="flag")
    if flag == "raises" and implementation.missing(["mask"]) is None:
        return inputs.replace(form="dense")
    return inputs


def refuses_flag(inputs: Inputs, implementation: Implementation) -> bool:
    """Whether inputs can be passed by the causal flag alone, and the implementation elects to raise."""
    return alignment(inputs, implementation) == "raises"


def backward_mode(gradient: str, answer: str) -> str:
    """What a reference takes a row without keys for in the backward pass, by what is elected of its
    gradient and of its answer.

    Raises NotApplicable where no reference follows: what ignores the mask in such rows is another
    problem's answer, up to what hiding by a finite number does to its scores.
    """
    if gradient not in ("nothing", "values", "scores", "nan"):
        raise NotApplicable(f"elects that the cotangent of a row without keys goes to {gradient}")
    if answer == "unmasked":
        raise NotApplicable("elects that rows without keys answer as if nothing were masked")
    return {"values": "uniform", "scores": "scores"}.get(gradient, "zeros")
