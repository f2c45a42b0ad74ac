"""Elections: the answers of implementations to questions without a single right answer.

`elected` is the declared answer, or else the answer that one run of a probe shows.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from weakref import WeakKeyDictionary

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.elections.questions import PROBES
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Mask, Padding, Window


def never_right(what: str, *answers: tuple[str, str], correct: str = "correct it") -> Deviation:
    """The failure of (question, answer) that are right only if they are promised. The message begins with
    how to correct the function, and with the options that promise the answers."""
    promise = " ".join(f"--elect {question}={answer}" for question, answer in answers)
    message, advice = f"{correct} or promise {promise}: {what}", f"{correct} or promise `{promise}`"
    return Deviation("election", message, what=what, advice=advice)


_OBSERVED: WeakKeyDictionary[Implementation, dict[tuple[str, str], str]] = WeakKeyDictionary()


def elected(question: str, implementation: Implementation, dtype: DType) -> str:
    """The answer in a dtype: the declared one, or else the observed one."""
    return implementation.elected(question, dtype) or observe(question, implementation, dtype)


def of_native(question: str, implementation: Implementation, dtype: DType) -> str:
    """The answer of the framework's own attention, shown beside that of a user function; "" if there is
    none, or if the question is not asked."""
    native = implementation.beside
    if native is None:
        return ""
    try:
        return elected(question, native, dtype)
    except (Deviation, NotApplicable):
        return ""


def observe(question: str, implementation: Implementation, dtype: DType) -> str:
    """The answer that one run of the question's probe shows. If nothing is declared, cells are judged by
    this answer, and the probe has all optimisations.

    Raises:

    - Deviation "election" if the answer is none of the question's options
    - Deviation "raised" for an error that is no answer (see `any_error_answers`)
    - NotApplicable if the implementation lacks what the probe needs
    """
    if implementation.optimized is not None and implementation.elected(question, dtype) is None:
        implementation = implementation.optimized
    answers = _OBSERVED.setdefault(implementation, {})
    key = (question, dtype.name)
    if key not in answers:
        probe = Probe(
            implementation,
            dtype,
            any_error=any_error_answers(question, implementation, dtype),
            may_refuse="raises" in QUESTIONS[question].options,
        )
        answers[key] = PROBES[question](probe)
    return answers[key]


def any_error_answers(question: str, implementation: Implementation, dtype: DType) -> bool:
    """True if every error is an answer to a question, and not refusals alone. This holds:

    - if the question says so, or an answer is declared;
    - if the framework's own attention raises, too;
    - for frameworks' own implementations on a device other than the CPU, whose elections nobody
      verified.
    """
    if QUESTIONS[question].any_error or implementation.elected(question, dtype) is not None:
        return True
    if implementation.declared.is_user_code:
        return of_native(question, implementation, dtype) == "raises"
    return implementation.backend.device != "cpu"


def questions_of_rows(inputs: Inputs, implementation: Implementation) -> tuple[str, ...]:
    """The questions about the fully masked rows of `inputs`: those of every way of hiding that empties
    such a row by itself. If no way does so by itself, those of all ways that do so together."""
    if not inputs.sizes.Lk:
        return ("no-keys",)
    left = _pairs_by_question(inputs, implementation)
    empty = {
        question: ~pairs.any(-1) & inputs.fully_masked_rows for question, pairs in left.items()
    }
    together = inputs.fully_masked_rows & ~np.logical_or.reduce(list(empty.values()))
    return tuple(name for name in left if empty[name].any() or together.any())


def question_of_gradients(question: str, inputs: Inputs) -> str:
    """The question about the gradients of the rows of `question`. Layers have none about rows that a
    bias empties."""
    gradient = f"{question}-gradient"
    return (
        gradient if gradient in inputs.operator.questions.elections else "fully-masked-row-gradient"
    )


def _pairs_by_question(inputs: Inputs, implementation: Implementation) -> dict[str, np.ndarray]:
    """The pairs (B, H, Lq, Lk) that each way of hiding leaves, by the question about its fully masked
    rows: a mask, the valid keys of a layer, and -inf in a bias."""
    left: dict[str, np.ndarray] = {}

    def hide(question: str, pairs: np.ndarray) -> None:
        every = left.get(question, np.ones(inputs.attends.shape, bool))
        left[question] = every & pairs

    biased = inputs.bias is not None
    merged = biased and implementation.declared.merges_mask_into_bias
    if inputs.bias is not None:
        hide("minus-inf-row", ~np.isneginf(inputs.bias))
    if inputs.mask_array is not None:
        hide("minus-inf-row" if merged else "fully-masked-row", inputs.mask_array)
    for part in inputs.mask.parts if inputs.mask is not None else ():
        pairs = part.dense(inputs.sizes, inputs.seed)
        if merged:
            hide("minus-inf-row", pairs)
            # A flag stands beside a bias, or is merged into it: which of them, the adapter knows.
            flags = inputs.form != "dense" and isinstance(part, Causal | Window)
            if flags:
                hide("fully-masked-row", pairs)
        elif inputs.operator.is_layer and inputs.form == "native" and _is_valid_keys(part):
            hide("padded-sample", pairs)
        else:
            hide("fully-masked-row", pairs)
    return left


def _is_valid_keys(part: Mask) -> bool:
    """True if layers take a part of a mask as an array of valid keys."""
    return isinstance(part, Padding) and not part.left


def alignment(inputs: Inputs, implementation: Implementation) -> str:
    """The elected alignment of the causal flag; "" if the inputs are passed without the flag, or if both
    alignments are equal."""
    sizes, parts = inputs.sizes, inputs.mask.parts if inputs.mask is not None else ()
    if inputs.form != "native" or sizes.Lq == sizes.Lk or Causal() not in parts:
        return ""
    if not _flagged("causal-alignment", inputs, implementation):
        return ""
    default = implementation.causal_alignment
    return _elected_or(default, "causal-alignment", implementation, inputs.dtype)


def aligned(inputs: Inputs, implementation: Implementation) -> Inputs:
    """The inputs as the implementation's causal flag means them: with the bottom-right mask if that is
    elected; with the mask as an array if the flag means another mask and arrays are taken."""
    flag = alignment(inputs, implementation)
    by_array = flag == "raises" or bool(_other_meaning(inputs, implementation))
    if flag == "bottom-right" and inputs.mask is not None:
        parts = [Causal(True) if part == Causal() else part for part in inputs.mask.parts]
        inputs = inputs.replace(mask=reduce(and_, parts), form="flag")
    if by_array and implementation.missing(["mask"]) is None:
        return inputs.replace(form="dense")
    return inputs


def raising(inputs: Inputs, implementation: Implementation) -> str:
    """The question on which an implementation elects to raise for these inputs; "" for none."""
    operator, dtype = inputs.operator, inputs.dtype
    questions = ["value-size"] if "value-size" in inputs.needs else []
    if inputs.has_empty_rows:
        questions += questions_of_rows(inputs, implementation)
        questions += ["lse-of-empty-row"] if "lse" in inputs.needs else []
    asked = [name for name in questions if name in operator.questions.elections]
    answers = {name: _elected_or("", name, implementation, dtype) for name in asked}
    answers["causal-alignment"] = alignment(inputs, implementation)
    answers |= _other_meaning(inputs, implementation)
    return next((name for name, answer in answers.items() if answer == "raises"), "")


def _other_meaning(inputs: Inputs, implementation: Implementation) -> dict[str, str]:
    """The elected meaning of a user function's causal flag in a call with these inputs, by question, if
    it differs from the mask of the case. Adapters of frameworks know what their flags mean."""
    if inputs.mask is None or not implementation.declared.is_user_code:
        return {}
    sliding = implementation.missing(["native-window"]) is None
    flags = (Causal, Window) if sliding else Causal
    beside = [part for part in inputs.mask.parts if not isinstance(part, flags)]
    merged = inputs.bias is not None and implementation.declared.merges_mask_into_bias
    meanings = {"causal-with-mask": "intersect"} if beside or merged else {}
    if all(_is_valid_keys(part) for part in beside):  # which a layer may be told apart from masks
        meanings["causal-alone"] = "hides"
    elected_meanings = {
        question: _elected_or(right, question, implementation, inputs.dtype)
        for question, right in meanings.items()
        if _flagged(question, inputs, implementation)
    }
    return {name: answer for name, answer in elected_meanings.items() if answer != meanings[name]}


def _flagged(question: str, inputs: Inputs, implementation: Implementation) -> bool:
    """True if these inputs are passed by a causal flag that the question is about."""
    return (
        inputs.mask is not None
        and inputs.form != "dense"
        and any(isinstance(part, Causal) for part in inputs.mask.parts)
        and question in inputs.operator.questions.elections
        and implementation.missing(["native-causal"]) is None
    )


def _elected_or(default: str, question: str, implementation: Implementation, dtype: DType) -> str:
    """The elected answer, or `default` if there is none; the check `election` reports that."""
    try:
        return elected(question, implementation, dtype)
    except (Deviation, NotApplicable):
        return default


def backward_mode(gradient: str, answer: str) -> str:
    """The mode of fully masked rows in the reference's backward pass, by the elections of gradient and
    answer.

    Raises NotApplicable if no reference computes the elected gradients: a row that ignores the mask
    answers another problem.
    """
    if gradient not in ("nothing", "values", "scores", "nan"):
        raise NotApplicable(f"elects that the cotangent of a row without keys goes to {gradient}")
    if answer == "unmasked":
        raise NotApplicable("elects that rows without keys answer as if nothing were masked")
    return {"values": "uniform", "scores": "scores"}.get(gradient, "zeros")
