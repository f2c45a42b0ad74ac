"""Elections: the answers of implementations to questions without a single right answer.

`elected_answer` is the declared answer, or else the answer that one run of a probe shows.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from weakref import WeakKeyDictionary

import numpy as np

from attention_conformance.backends.protocol import Implementation
from attention_conformance.suite.judge.elections.probe import Probe
from attention_conformance.suite.judge.elections.questions import PROBES
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.dtypes import DType
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Causal, Mask, Padding, Window


def unpromised_deviation(
    fault: str, *answers: tuple[str, str], correct: str = "correct it"
) -> WrongAnswer:
    """Returns WrongAnswer "election", for answers (question, answer) that are right only if they are
    promised. The message begins with `correct` and the options that promise the answers, and ends with
    `fault`."""
    promise = " ".join(f"--elect {question}={answer}" for question, answer in answers)
    message, advice = (
        f"{correct} or promise {promise}: {fault}",
        f"{correct} or promise `{promise}`",
    )
    return WrongAnswer("election", message, what=fault, advice=advice)


_OBSERVED: WeakKeyDictionary[Implementation, dict[tuple[str, str], str]] = WeakKeyDictionary()


def elected_answer(question: str, implementation: Implementation, dtype: DType) -> str:
    """Returns the answer in a dtype: the declared one, or else the observed one. Raises the errors of
    `observe`."""
    return implementation.declared_answer(question, dtype) or observe(
        question, implementation, dtype
    )


def native_answer(question: str, implementation: Implementation, dtype: DType) -> str:
    """Returns the answer of the framework's own attention, for comparison with a user function's; "" if
    there is no such attention, or no answer."""
    native = implementation.beside
    if native is None:
        return ""
    try:
        return elected_answer(question, native, dtype)
    except (WrongAnswer, NotApplicable):
        return ""


def observe(question: str, implementation: Implementation, dtype: DType) -> str:
    """Returns the answer that one run of the question's probe shows. Answers are cached.

    Without a declaration, cells are judged by this answer. Then the probe compiles with all
    optimisations; a user function is called in the same form, compiled or eager, as in the cell.

    Raises:

    - WrongAnswer "election" if the answer is none of the question's options
    - WrongAnswer "raised" for an error that is no answer (see `any_error_answers`)
    - NotApplicable if the implementation lacks a feature that the probe needs
    """
    is_user_code = implementation.declared.is_user_code
    is_declared = implementation.declared_answer(question, dtype) is not None
    if implementation.optimized is not None and not is_user_code and not is_declared:
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
    """True if every error counts as the answer "raises"; False if only refusals do. True

    - if the question says so, or an answer is declared
    - for a user function if the framework's own attention raises, too
    - for frameworks' own implementations on a device other than the CPU: nobody verified their elections
    """
    if QUESTIONS[question].any_error or implementation.declared_answer(question, dtype) is not None:
        return True
    if implementation.declared.is_user_code:
        return native_answer(question, implementation, dtype) == "raises"
    return implementation.backend.device != "cpu"


def questions_of_rows(inputs: Inputs, implementation: Implementation) -> tuple[str, ...]:
    """Returns the questions about the fully masked rows of `inputs`. Each way of hiding keys (mask,
    padding, bias) has a question. The question counts if that way alone masks a row fully. If a row is
    masked by several ways together, the questions of all ways count."""
    if not inputs.sizes.Lk:
        return ("no-keys",)
    visible = _visible_pairs(inputs, implementation)
    emptied = {
        question: ~pairs.any(-1) & inputs.fully_masked_rows for question, pairs in visible.items()
    }
    emptied_jointly = inputs.fully_masked_rows & ~np.logical_or.reduce(list(emptied.values()))
    return tuple(name for name in visible if emptied[name].any() or emptied_jointly.any())


def question_of_gradients(question: str, inputs: Inputs) -> str:
    """Returns the question about the gradients of fully masked rows, for the question about their values.
    Layers have no own question for rows that a bias masks."""
    name = f"{question}-gradient"
    return name if name in inputs.operator.questions.elections else "fully-masked-row-gradient"


def _visible_pairs(inputs: Inputs, implementation: Implementation) -> dict[str, np.ndarray]:
    """Returns boolean arrays (B, H, Lq, Lk) by question: True for the pairs that one way of hiding keys
    leaves visible. The ways are a mask, the valid keys of a layer, and -inf in a bias. Their questions
    are those about fully masked rows."""
    visible: dict[str, np.ndarray] = {}

    def intersect(question: str, pairs: np.ndarray) -> None:
        former = visible.get(question, np.ones(inputs.attends.shape, bool))
        visible[question] = former & pairs

    biased = inputs.bias is not None
    merges_mask = biased and implementation.declared.merges_mask_into_bias
    if inputs.bias is not None:
        intersect("minus-inf-row", ~np.isneginf(inputs.bias))
    if inputs.mask_array is not None:
        intersect("minus-inf-row" if merges_mask else "fully-masked-row", inputs.mask_array)
    for part in inputs.mask.parts if inputs.mask is not None else ():
        pairs = part.dense(inputs.sizes, inputs.seed)
        if merges_mask:
            intersect("minus-inf-row", pairs)
            # Only the adapter knows whether it passes a flag or merges the mask into the bias.
            if inputs.form != "dense" and isinstance(part, Causal | Window):
                intersect("fully-masked-row", pairs)
        elif inputs.operator.is_layer and inputs.form == "native" and _is_valid_keys(part):
            intersect("padded-sample", pairs)
        else:
            intersect("fully-masked-row", pairs)
    return visible


def _is_valid_keys(part: Mask) -> bool:
    """True if layers take this part of a mask as an array of valid keys: padding on the right."""
    return isinstance(part, Padding) and not part.left


def alignment(inputs: Inputs, implementation: Implementation) -> str:
    """Returns the elected alignment of the causal flag: "top-left", "bottom-right" or "raises". "" if the
    inputs are passed without the flag, or if both alignments are equal."""
    sizes, parts = inputs.sizes, inputs.mask.parts if inputs.mask is not None else ()
    if inputs.form != "native" or sizes.Lq == sizes.Lk or Causal() not in parts:
        return ""
    if not _passes_flag("causal-alignment", inputs, implementation):
        return ""
    default = implementation.causal_alignment
    return _elected_or(default, "causal-alignment", implementation, inputs.dtype)


def with_flag_mask(inputs: Inputs, implementation: Implementation) -> Inputs:
    """Returns the inputs with the mask that the implementation's causal flag means. If bottom-right is
    elected, causal parts become bottom-right. If the flag has another meaning, the mask is passed as an
    array, provided that the implementation supports arrays."""
    elected_alignment = alignment(inputs, implementation)
    needs_array = elected_alignment == "raises" or bool(_other_meanings(inputs, implementation))
    if elected_alignment == "bottom-right" and inputs.mask is not None:
        parts = [Causal(True) if part == Causal() else part for part in inputs.mask.parts]
        inputs = inputs.replace(mask=reduce(and_, parts), form="flag")
    if needs_array and implementation.missing(["mask"]) is None:
        return inputs.replace(form="dense")
    return inputs


def question_that_raises(inputs: Inputs, implementation: Implementation) -> str:
    """Returns the first election question whose answer for these inputs is "raises"; "" for none."""
    operator, dtype = inputs.operator, inputs.dtype
    questions = ["value-size"] if "value-size" in inputs.needs else []
    if inputs.has_empty_rows:
        questions += questions_of_rows(inputs, implementation)
        questions += ["lse-of-empty-row"] if "lse" in inputs.needs else []
    known_questions = [name for name in questions if name in operator.questions.elections]
    answers = {name: _elected_or("", name, implementation, dtype) for name in known_questions}
    answers["causal-alignment"] = alignment(inputs, implementation)
    answers |= _other_meanings(inputs, implementation)
    return next((name for name, answer in answers.items() if answer == "raises"), "")


def _other_meanings(inputs: Inputs, implementation: Implementation) -> dict[str, str]:
    """Returns, by question, the elected meanings of a user function's causal flag that differ from the
    case's mask in a call with these inputs. {} for adapters of frameworks: they use flags as
    documented."""
    if inputs.mask is None or not implementation.declared.is_user_code:
        return {}
    has_window_flag = implementation.missing(["native-window"]) is None
    flags = (Causal, Window) if has_window_flag else Causal
    array_parts = [part for part in inputs.mask.parts if not isinstance(part, flags)]
    merges_mask = inputs.bias is not None and implementation.declared.merges_mask_into_bias
    meanings_of_case = {"causal-with-mask": "intersect"} if array_parts or merges_mask else {}
    if all(map(_is_valid_keys, array_parts)):
        # A layer may take valid keys as another argument: then the flag stands without a mask.
        meanings_of_case["causal-alone"] = "hides"
    elected_meanings = {
        name: _elected_or(default, name, implementation, inputs.dtype)
        for name, default in meanings_of_case.items()
        if _passes_flag(name, inputs, implementation)
    }
    return {
        name: answer
        for name, answer in elected_meanings.items()
        if answer != meanings_of_case[name]
    }


def _passes_flag(question: str, inputs: Inputs, implementation: Implementation) -> bool:
    """True if these inputs are passed with a causal flag, and the operator has the question."""
    return (
        inputs.mask is not None
        and inputs.form != "dense"
        and any(isinstance(part, Causal) for part in inputs.mask.parts)
        and question in inputs.operator.questions.elections
        and implementation.missing(["native-causal"]) is None
    )


def _elected_or(default: str, question: str, implementation: Implementation, dtype: DType) -> str:
    """Returns the elected answer, or `default` if the probe gives no valid answer. The check `election`
    reports that."""
    try:
        return elected_answer(question, implementation, dtype)
    except (WrongAnswer, NotApplicable):
        return default


def backward_mode(gradient: str, answer: str) -> str:
    """Returns the mode of fully masked rows in the reference's backward pass, "zeros", "uniform" or
    "scores", for the elected `gradient` and `answer` of such rows.

    Raises NotApplicable if no reference computes the elected gradients: a row that ignores the mask
    answers another problem.
    """
    if gradient not in ("nothing", "values", "scores", "nan"):
        raise NotApplicable(f"elects that the cotangent of a row without keys goes to {gradient}")
    if answer == "unmasked":
        raise NotApplicable("elects that rows without keys answer as if nothing were masked")
    return {"values": "uniform", "scores": "scores"}.get(gradient, "zeros")
