"""Promise: a compiled call equals the original function, whatever was called before.

The checks `values`, `gradients` and `election` judge compiled outputs and gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS

FIRST = (
    "sdpa/none/mha/f32/b2h3q11k9d6/bias.qk",
    "sdpa/bool.b1qk/mha/f32/b2h3q11k9d6/dense",
)
CASES = cases_of(
    Ask(*FIRST),
    Ask(
        "sdpa/none/gqa2/bf16/b2h4q11k9d6/bias.qk",
        "sdpa/causal/gqa2/f32/b2h4q11k9d6",
        "multi-head/none/mha/f32/b2h3q5k9d4/e12.12.12.12",
        "multi-head/bool.bhqk/mha/f32/b3h3q3k3d4/e12.12.12.12/self/dense",
        since="standard",
    ),
)


def with_other_values(inputs: Inputs) -> Inputs:
    """Returns the inputs with other values of the same shapes: operands reversed along rows and scaled,
    and a negated bias."""
    factors = (2.0, 2.0, 2.0) if inputs.self_attention else (2.0, -1.0, 0.5)
    changed: dict[str, Any] = {
        name: round_to(factor * getattr(inputs, name)[..., ::-1, :], inputs.dtype)
        for name, factor in zip(OPERANDS, factors, strict=True)
    }
    if inputs.bias is not None:
        changed["bias"] = round_to(-inputs.bias, inputs.dtype)
    return inputs.replace(**changed)


def with_other_mask(inputs: Inputs) -> Inputs:
    """Returns the inputs with another mask of the same shape; every row attends its first key."""
    mask = np.roll(np.asarray(inputs.dense_mask), 1, -1) | (np.arange(inputs.sizes.Lk) == 0)
    return inputs.replace(mask=None, mask_array=mask, form="dense")


def arguments_for(cell: Cell, inputs: Inputs) -> dict[str, Any]:
    """Returns the arguments of the call for `inputs` by name. The call is prepared without the
    compiler."""
    inner = getattr(cell.implementation, "inner", cell.implementation)
    return inner.prepare(inputs).arguments


UNMASKED = CASES.where(lambda case: case.mask is None)
"""Cases of `compiled_again` without a mask, so their lengths can change."""


@check(cases_of(), compiled=CASES)
def test_compiled_again(cell: Cell) -> None:
    """One compiled call with the first values, other values, another mask, and the first values again."""
    first = cell.prepare(cell.inputs)
    problems = [cell.inputs, with_other_values(cell.inputs)]
    if cell.inputs.mask is not None and cell.inputs.form == "dense":
        problems.append(with_other_mask(cell.inputs))
    for inputs in (*problems, cell.inputs):
        arguments = arguments_for(cell, inputs)
        if inputs.mask_array is not None and not _mask_differs(cell, first.arguments, arguments):
            continue  # the mask is a part of the function, not an argument
        answer = cell.attempt(partial(first.call, arguments))
        cell.judge(cell.read(answer, inputs, first), inputs)


@check(cases_of(), needs=("other-shapes",), compiled=UNMASKED)
def test_compiled_lengths(cell: Cell) -> None:
    """One compiled call with the lengths of its compilation, with shorter ones, and with the first ones
    again."""
    first = cell.prepare(cell.inputs)
    s: Sizes = cell.inputs.sizes
    for queries, keys in ((s.Lq, s.Lk), (s.Lq - 3, s.Lk - 4), (s.Lq, s.Lk)):
        inputs = cell.inputs.replace(
            query=cell.inputs.query[..., :queries, :],
            key=cell.inputs.key[..., :keys, :],
            value=cell.inputs.value[..., :keys, :],
            bias=None if cell.inputs.bias is None else cell.inputs.bias[:queries, :keys],
        )
        arguments = arguments_for(cell, inputs)
        answer = cell.attempt(partial(first.call, arguments))
        cell.judge(cell.read(answer, inputs, first), inputs)


def _mask_differs(cell: Cell, a: dict, b: dict) -> bool:
    """True if the arguments `a` and `b` of two calls differ in an array that is no operand. Then the call
    takes the mask as an argument."""
    backend = cell.implementation.backend
    names = [n for n in a if backend.is_array(a[n]) and n not in OPERANDS]
    return any(
        not np.array_equal(backend.to_numpy(a[n]), backend.to_numpy(b[n])) for n in names if n in b
    )
