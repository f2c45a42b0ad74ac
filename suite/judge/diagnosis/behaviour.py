"""What a call does beside its answer: to its inputs, to later calls, and to the type of its output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from attention_conformance.suite.judge import answer
from attention_conformance.suite.judge.arguments import arrays_of, watched
from attention_conformance.suite.judge.diagnosis.instrument import Instrument, Symptom
from attention_conformance.suite.judge.verdict import Deviation
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs

VARIES = "varies"
"""The name of findings about a function whose answer to the same inputs changes."""

WRITES = "writes"
"""The name of findings about a function that changes its arguments: its answers can be read still."""


def ask(tool: Instrument, case: Case) -> Iterator[Symptom]:
    """Side effects of calls for a case."""
    for name in ("f32", "bf16", "f16"):
        typed = replace(case, dtype=DTYPES[name])
        if tool.implementation.unsupported(typed) is None:
            found = tool.attempt(partial(_typed, tool, tool.draw(typed)))
            if found is not None:
                yield found
                return
    found = tool.attempt(lambda: list(_effects(tool, tool.draw(case))))
    yield from found or ()


def _typed(tool: Instrument, inputs: Inputs) -> Symptom | None:
    """The symptom if the output has another type, dtype, device or shape."""
    prepared = tool.prepare(inputs)
    if prepared is None:
        return None
    native = prepared()
    try:
        answer.read(tool.implementation.backend, native, inputs, prepared)
    except Deviation as deviation:
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


def _effects(tool: Instrument, inputs: Inputs) -> Iterator[Symptom]:
    backend = tool.implementation.backend
    prepared = tool.prepare(inputs)
    if prepared is None:
        return

    def values(native: object) -> np.ndarray:
        return np.array(answer.read(backend, native, inputs, prepared).arrays["output"])

    changed_since = watched(backend, arrays_of(backend, prepared))
    native = prepared()
    first = values(native)
    if written := changed_since():
        yield Symptom(
            f"The call writes into {', '.join(written)}: it changes its arguments in place.",
            "state", "`mul_`, `+=`, `out=` on an argument", key=WRITES,
        )  # fmt: skip
    fresh = tool.prepare(inputs)
    if fresh is None:
        return
    again = values(fresh())
    apart = np.abs(first - again)
    if tool.implementation.declared.deterministic and not np.array_equal(
        first, again, equal_nan=True
    ):
        yield Symptom(
            f"A second call with the same inputs gives another answer: {int((apart > 0).sum())} of "
            f"{apart.size} elements differ, by up to {np.nanmax(apart):.2g}.",
            "state", "a buffer that is not cleared, dropout, sums in an order that varies", key=VARIES,
        )  # fmt: skip
        return
    other = inputs.replace(key=inputs.key[:, :, ::-1], value=inputs.value[..., ::-1] + 1)
    between = tool.prepare(other)
    if between is None:
        return
    changed = values(between())
    if not np.array_equal(values(native), first, equal_nan=True):
        yield Symptom("The output of a call changes when another call runs: both share memory.", "state",
                    "an output buffer that is kept between calls")  # fmt: skip
        return
    own, theirs = tool.oracle(inputs), tool.oracle(other)
    told_apart = own is not None and theirs is not None and bool(
        (np.abs(first - own.expected["output"].value) <= own.expected["output"].error).all()
        and (np.abs(first - theirs.expected["output"].value) > theirs.expected["output"].error).any()
    )  # fmt: skip
    if told_apart and np.array_equal(changed, first):
        yield Symptom("A call with the same query and other keys and values gives the answer of the "
                    "call before.",
                    "state", "a cache whose key leaves arguments out")  # fmt: skip
        return
    last = tool.prepare(inputs)
    if last is not None and not np.array_equal(values(last()), first, equal_nan=True):
        yield Symptom("A call gives another answer once a call with other keys has come between.",
                      "state", "something that is kept between calls", key=VARIES)  # fmt: skip
