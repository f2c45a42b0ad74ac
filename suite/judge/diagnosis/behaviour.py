"""The symptoms of side effects on arguments and later calls, and of a wrong type of output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.judge import answer
from attention_conformance.suite.judge.arguments import arrays_of, change_detector
from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs

VARIES = "varies"
"""The key of symptoms of a function whose answer to the same inputs changes."""

WRITES = "writes"
"""The key of the symptom of a function that changes its arguments; its answers can still be read."""


def behaviour_symptoms(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Yields the symptom of a wrong type of output, or else the symptoms of side effects."""
    for name in ("f32", "bf16", "f16"):
        probe = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(probe) is None:
            symptom = tool.attempt(partial(_type_symptom, tool, tool.draw(probe)))
            if symptom is not None:
                yield symptom
                return
    symptoms = tool.attempt(lambda: list(_effect_symptoms(tool, tool.draw(case))))
    yield from symptoms or ()


def _type_symptom(tool: Instrument, inputs: Inputs) -> Symptom | None:
    """Returns the symptom if the output has a wrong type, dtype, device or shape, else None."""
    prepared = tool.prepare(inputs)
    if prepared is None:
        return None
    native = prepared()
    try:
        answer.read_answer(tool.implementation.backend, native, inputs, prepared)
    except WrongAnswer as deviation:
        text = deviation.message.replace("expected", "the expected", 1)
        text = (
            f"Of {inputs.dtype.long_name} inputs {text}."
            if deviation.kind != "type"
            else f"{deviation.message}."
        )
        return Symptom(
            text[0].upper() + text[1:], "contract", f"the {deviation.kind} of what is returned"
        )
    return None


def _effect_symptoms(tool: Instrument, inputs: Inputs) -> Iterator[Symptom]:
    """Yields the symptoms of changed arguments, changing answers, shared memory and stale caches. They
    are probed in this order, up to the first symptom after changed arguments."""
    backend = tool.implementation.backend
    prepared = tool.prepare(inputs)
    if prepared is None:
        return

    def values(native: object) -> np.ndarray:
        return np.array(answer.read_answer(backend, native, inputs, prepared).arrays["output"])

    changed_since = change_detector(backend, arrays_of(backend, prepared))
    native = prepared()
    first = values(native)
    if changed_names := changed_since():
        yield Symptom(
            f"The call writes into {', '.join(changed_names)}: it changes its arguments in place.",
            "state", "`mul_`, `+=`, `out=` on an argument", key=WRITES,
        )  # fmt: skip
    second_call = tool.prepare(inputs)
    if second_call is None:
        return
    second = values(second_call())
    differences = np.abs(first - second)
    repeats = np.array_equal(first, second, equal_nan=True)
    if tool.implementation.declared.deterministic and not repeats:
        yield Symptom(
            f"A second call with the same inputs gives another answer: {int((differences > 0).sum())} of "
            f"{differences.size} elements differ, by up to {np.nanmax(differences):.2g}.",
            "state", "a buffer that is not cleared, dropout, sums in an order that varies", key=VARIES,
        )  # fmt: skip
        return
    other_inputs = inputs.replace(key=inputs.key[:, :, ::-1], value=inputs.value[..., ::-1] + 1)
    other_call = tool.prepare(other_inputs)
    if other_call is None:
        return
    other_output = values(other_call())
    if not np.array_equal(values(native), first, equal_nan=True):
        yield Symptom("The output of a call changes when another call runs: both share memory.", "state",
                    "an output buffer that is kept between calls")  # fmt: skip
        return
    right, other = tool.oracle(inputs), tool.oracle(other_inputs)
    differ_by_right = right is not None and other is not None and bool(
        (np.abs(first - right.expected["output"].value) <= right.expected["output"].error).all()
        and (np.abs(first - other.expected["output"].value) > other.expected["output"].error).any()
    )  # fmt: skip
    if differ_by_right and np.array_equal(other_output, first):
        yield Symptom("A call with the same query and other keys and values gives the answer of the "
                    "call before.",
                    "state", "a cache whose key leaves arguments out")  # fmt: skip
