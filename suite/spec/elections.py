"""Elections: questions about implementation-defined behaviour, where the field has no single right
answer.

An implementation declares its answers and is judged by them. The first option of every question is
canonical: the reference follows it. Answers are observed by running (`suite/test_elections.py`), never
copied from documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.levels import ALL, ELECTIONS_AT, HALF
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import OPERATORS


@dataclass(frozen=True)
class Question:
    """One question, with the answers of released implementations and the dtypes in which it is asked.

    - `options`: the answers.
    - `needs`: the features without which the question cannot be put.
    - `layer_dtypes`: the dtypes for layers; () for the same dtypes.
    - `by_machine`: the answer depends on the matrix products that the framework has for the machine.
    - `by_dtype`: the answer may differ between dtypes.
    - `accidental`: frameworks answer as their kernels happen to compute, and document no answer. A
      drop-in replacement is not judged by such answers.
    - `any_error`: an error of any type is the answer "raises", also from a user's function: writing
      beyond an array raises whatever the framework's indexing raises.

    Each answer is that of a released implementation. A call that gives none of the answers fails.
    """

    name: str
    text: str
    options: tuple[str, ...]
    dtypes: tuple[str, ...] = ("f32", "bf16", "f16", "f64")
    needs: tuple[str, ...] = ()
    layer_dtypes: tuple[str, ...] = ()
    by_machine: bool = False
    by_dtype: bool = False
    accidental: bool = False
    any_error: bool = False

    @property
    def canonical(self) -> str:
        return self.options[0]

    @property
    def one_answer(self) -> bool:
        """True if the answer is the same in all dtypes."""
        return not (self.by_machine or self.by_dtype)


QUESTIONS: dict[str, Question] = {
    q.name: q
    for q in (
        Question(
            "fully-masked-row",
            "A row whose boolean mask hides every key gives",
            ("zeros", "nan", "uniform", "unmasked", "raises"),
            needs=("mask",),
        ),
        Question(
            "padded-sample",
            "A sample whose keys are all padding gives",
            ("zeros", "nan", "uniform", "unmasked", "raises"),
            needs=("padding",),
        ),
        Question(
            "minus-inf-row",
            "A row whose additive bias is -inf for every key gives",
            ("zeros", "nan", "uniform", "raises"),
            needs=("bias",),
        ),
        Question(
            "lowest-row",
            "A row whose additive bias is the dtype's lowest finite number for every key gives",
            # exp(scores - log-sum-exp) is 1 for every key, or for every part of the keys, if the
            # log-sum-exp absorbs the logarithm of their number. Then parts add or average their means:
            # weighted.
            ("uniform", "unmasked", "weighted", "zeros", "nan", "raises"),
            needs=("bias",),
            by_dtype=True,
            accidental=True,
        ),
        Question(
            "fully-masked-row-gradient",
            "The cotangent of a row whose boolean mask hides every key goes to",
            ("nothing", "values", "scores", "nan", "raises"),
            needs=("mask", "gradient"),
            layer_dtypes=("f32", "bf16"),
        ),
        Question(
            "padded-sample-gradient",
            "The cotangent of a sample whose keys are all padding goes to",
            ("nothing", "values", "scores", "nan", "raises"),
            ("f32", "bf16"),
            needs=("padding", "gradient"),
        ),
        Question(
            "minus-inf-row-gradient",
            "The cotangent of a row whose additive bias is -inf for every key goes to",
            ("nothing", "values", "scores", "nan", "raises"),
            ("f32", "bf16"),
            needs=("bias", "gradient"),
        ),
        Question(
            "nan-in-masked-key-gradient",
            "A NaN in a key that the mask hides from every query, seen from the gradients, is",
            ("blocked", "leaks"),
            needs=("mask", "gradient"),
            accidental=True,
        ),
        Question(
            "nan-in-masked-value-gradient",
            "A NaN in a value that the mask hides from every query, seen from the gradients, is",
            ("blocked", "leaks"),
            needs=("mask", "gradient"),
            accidental=True,
        ),
        Question(
            "no-keys", "With no keys at all (Lk = 0) the output is", ("zeros", "nan", "raises")
        ),
        Question(
            "causal-alignment",
            "The native causal flag with Lq != Lk is aligned",
            ("top-left", "bottom-right", "raises"),
            ("f32",),
            ("native-causal",),
        ),
        Question(
            "causal-with-mask",
            "The native causal flag together with a boolean mask means",
            ("intersect", "raises", "causal-ignored", "mask-ignored"),
            ("f32",),
            ("native-causal", "mask"),
        ),
        Question(
            "causal-alone",
            "The native causal flag of a layer without a mask",
            ("hides", "ignored", "raises"),
            ("f32",),
            ("native-causal",),
        ),
        Question(
            "mask-polarity",
            "True in a boolean mask",
            ("attends", "hides", "raises"),
            ("f32",),
            ("mask", "raw-mask"),
        ),
        Question(
            "returned-weights",
            "While dropout is on, the weights that are returned are those",
            ("before-dropout", "after-dropout"),
            ("f32",),
            ("weights", "dropout"),
        ),
        Question(
            "nan-in-masked-key",
            "A NaN in a key that the mask hides from every query",
            ("blocked", "leaks"),
            needs=("mask",),
            accidental=True,
        ),
        Question(
            "nan-in-masked-value",
            "A NaN in a value that the mask hides from every query",
            ("blocked", "leaks"),
            needs=("mask",),
            accidental=True,
        ),
        Question("nan-in-attended-key", "A NaN in a key that rows attend", ("reaches-them",)),
        Question("nan-in-attended-value", "A NaN in a value that rows attend", ("reaches-them",)),
        Question(
            "nan-in-bias",
            "A NaN in an additive bias, at a key that its row attends",
            ("reaches-the-row",),
            HALF,
            needs=("bias",),
        ),
        Question(
            "inf-in-attended-value",
            "Infinity in a value that rows attend",
            ("reaches-them",),
            HALF,
        ),
        # torch 2.13 gives zeros on the CPU: comparisons with NaN leave the running maximum at -inf.
        Question(
            "nan-in-query", "A NaN in a query turns its row into", ("nan", "zeros"), accidental=True
        ),
        # In the dtype that operands of float32 may be cast to.
        Question(
            "autocast",
            "Under automatic mixed precision a call with float32 operands",
            ("narrow", "narrow-inside", "unchanged", "raises"),
            ("bf16", "f16"),
        ),
        Question(
            "wider-default-dtype",
            "If float64 is the framework's default dtype, a call with narrower operands",
            ("answers", "raises"),
            HALF,
        ),
        Question(
            "other-default-device",
            "If the framework's default device is another one, a call",
            ("answers", "raises"),
            HALF,
        ),
        Question("mapped", "Mapped over samples (vmap), a call", ("answers", "raises"), HALF),
        Question(
            "traced",
            "Traced into a program (jax.jit, tf.function), a call",
            ("answers", "raises"),
            HALF,
        ),
        Question(
            "value-size", "Values of another size than keys (Dv != D) are", ("accepted", "raises")
        ),
        Question(
            "integer-mask",
            "A mask of integers is",
            ("raises", "cast-to-bool", "added"),
            ("f32",),
            ("mask", "mask-array"),
        ),
        Question(
            "subnormal-output",
            "Values below the smallest normal number of the dtype are",
            ("kept", "flushed"),
            by_machine=True,
            accidental=True,
        ),
        Question(
            "lse-of-empty-row",
            "The log-sum-exp of a row whose boolean mask hides every key is",
            ("minus-inf", "lowest", "all-keys", "zero", "plus-inf", "nan", "raises"),
            needs=("mask", "lse"),
        ),
        Question(
            "nan-in-other-segment",
            "NaN in the tokens of one packed segment reaches",
            ("nobody", "others"),
        ),
        Question(
            "segment-without-keys",
            "The queries of a packed segment without keys give",
            ("zeros", "nan", "raises"),
            HALF,
            needs=("cross-lengths", "empty-segments"),
        ),
        Question(
            "nan-behind-last-key",
            "NaN in a page behind the last key of its sample is",
            ("blocked", "leaks"),
        ),
        Question(
            "minus-one-behind-last-page",
            "A page number of -1 in the entries of a table behind the last page of a sample",
            ("ignored", "raises"),
            ("f32",),
            any_error=True,
        ),
        Question(
            "nan-in-freed-slot",
            "NaN in a slot whose token left the cache is",
            ("blocked", "leaks"),
            ("f32",),
        ),
        Question(
            "beyond-capacity",
            "Without a window, tokens beyond the capacity of a cache",
            ("grows", "ring", "raises"),
            ("f32",),
            any_error=True,
        ),
        Question(
            "lse-gradient",
            "The gradient of the log-sum-exp by the queries",
            ("flows", "nothing", "raises"),
            ("f32",),
            needs=("lse", "gradient"),
        ),
        Question(
            "score-overflow",
            "query key^T beyond 65504 before the scale, moderate after it, in float16 gives",
            ("finite", "nan"),
            ("f16",),
            ("scale",),
            accidental=True,
        ),
        Question(
            "large-scores",
            "Scores of a layer beyond 65504, of which each row has one largest, in float16 give",
            ("largest", "nan"),
            ("f16",),
            accidental=True,
        ),
    )
}


@dataclass(frozen=True)
class ElectionCase:
    """The probe of one question for one operator in one dtype."""

    question: Question
    dtype: DType
    operator: Operator

    group = "elections"

    why = "implementations differ in the answer, and the answer may depend on the dtype"
    """The reason for `list --why`."""

    @property
    def id(self) -> str:
        return f"elect/{self.operator.qualified(self.question.name)}/{self.dtype.name}"

    @property
    def needs(self) -> tuple[str, ...]:
        return self.question.needs

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of the probe by name (see `suite.spec.case.Case.facts`)."""
        return {"question": self.question.name}

    def describe(self) -> str:
        """Returns a description of the question in a few lines."""
        return f"{self.id}\n  {self.question.text}: {' | '.join(self.question.options)}"

    def __str__(self) -> str:
        return self.id


ELECTION_CASES: tuple[ElectionCase, ...] = tuple(
    ElectionCase(q, DTYPES[name], operator)
    for q in QUESTIONS.values()
    for operator in OPERATORS.values()
    if q.name in operator.questions.elections
    for name in (operator.is_layer and q.layer_dtypes) or q.dtypes
)


def of_questions(
    names: Collection[str] = QUESTIONS, dtypes: str = ""
) -> Callable[[str], list[ElectionCase]]:
    """Returns a function from a level to the election cases of these questions. A question has its first
    dtype and the dtypes of the row `dtypes` of `ELECTIONS_AT`; if `dtypes` is "", all its dtypes."""

    def cases_at(level: str) -> list[ElectionCase]:
        row_dtypes = getattr(ELECTIONS_AT[dtypes], level) if dtypes else ALL
        cases = (case for case in ELECTION_CASES if case.question.name in names)
        return [case for case in cases if case.dtype.name in (case.question.dtypes[0], *row_dtypes)]

    return cases_at
