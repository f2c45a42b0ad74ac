"""Promise: flags that select a code path do not change the output."""

from __future__ import annotations

from dataclasses import replace

from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import Ask, cases_of, plain_patterns

SLIDING = "multi-head/win2.2/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self"

FIRST_CASES = (
    SLIDING,
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self",
    "multi-head/bool.bhqk/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/dense",
    "additive/causal/mha/{dt}/b2h1q7k7d12/e12.12.12.12/identity",
    "dot/causal+pad/mha/{dt}/b7h1q7k7d8/e8.8.8.8",
    *plain_patterns("layer-norm"),
    "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
    *plain_patterns("batch-norm"),
    "sdpa/none/mha/{dt}/b2h3q17k23d8",
    "sdpa/bool.b1qk/mqa/{dt}/b1h2q1k65d8/dense",
    "sdpa/causal/mha/{dt}/b2h3q17k23d8",
    "sdpa/causalbr/mha/{dt}/b2h3q17k23d8",
)
"""Cases of every level."""

SERVING_CASES = (
    *plain_patterns("paged", "cached"),
    "packed/none/gqa2/{dt}/b3h4q24k24d8/seg5.7.12/causal",
    "encoder/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.20/pre/self",
)
"""Cases with pages, caches and packed segments, and of a layer of an encoder."""

MASKED_SAMPLE = "multi-head/bool.qk/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self/dense"

ONE_SAMPLE = "multi-head/none/mha/{dt}/b1h4q7k7d3/e12.12.12.12/self"

MORE_CASES = (
    ONE_SAMPLE,
    MASKED_SAMPLE,
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/bias.bhqk/self",
    "multi-head/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.12/nobias/self/head",
    "multi-head/none/mha/{dt}/b2h4q7k7d3/e12.12.12.12/self/average",
    "dot/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/unscaled/head",
    "concat/pad/mha/{dt}/b2h1q5k9d8v6/e8.8.6.6/head",
    "layer-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/plain/self",
    "multi-head/pad/mha/{dt}/b2h2q5k9d6/e12.10.14.12",
    "multi-head/causal/mha/{dt}/b2h3q5k9d4/e12.12.12.12",
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12/nobias",
    "multi-head/none/mha/{dt}/b3h3q3k3d4/e12.12.12.12/self",
    "multi-head/bool.b1qk/mha/{dt}/b2h3q5k9d4/e12.12.12.12/dense",
    "multi-head/causal/gqa3/{dt}/b2h6q5k5d4/e12.12.12.12/self",
    "sdpa/causal+pad/mha/{dt}/b2h3q17k23d8",
    "sdpa/causal/mha/{dt}/b2h3q17k23d8v6",
    "sdpa/causal+pad/mha/{dt}/b2h3q17k23d8v6",
    "sdpa/causal/mha/{dt}/b2h3q17k23d8/lse",
    "sdpa/none/mha/{dt}/b2h3q17k23d8/bias.1hqk/scale0.5",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q17k23d8/dense",
    "sdpa/win40.40/mha/{dt}/b2h3q17k23d8",
    "sdpa/bool.1hqk/mha/{dt}/b2h3q17k23d8/dense",
    "sdpa/bool.1hqk/mha/{dt}/b3h3q11k17d8/dense",
    "sdpa/bool.b11k/mha/{dt}/b1h2q1k65d8/dense",
    "sdpa/bool.bhqk/gqa2/{dt}/b2h4q11k9d6/bias.bhqk/dense",
)


@check(
    cases_of(
        Ask(*FIRST_CASES, dtypes="growing"),
        Ask(*MORE_CASES, dtypes="float32", since="standard"),
        Ask(*SERVING_CASES, dtypes="growing", since="standard"),
    )
)
def test_paths(cell: Cell) -> None:
    """Every path is compared with the reference. The message names the wrong paths."""
    cell.judge(cell.run())
    paths = cell.implementation.paths(cell.inputs)
    if not paths:
        raise NotApplicable("has one path")
    wrong: dict[str, WrongAnswer] = {}
    unjudged: list[str] = []
    for name, prepared in paths.items():
        try:
            problem = prepared.problem or cell.inputs
            cell.judge(cell.read(cell.call(prepared), problem, prepared), problem)
        except WrongAnswer as deviation:
            wrong[name] = deviation
        except NotApplicable as reason:
            # The path calls with another problem, whose answer is an election that cannot be judged.
            unjudged.append(f"{name}: {reason}")
    if len(unjudged) == len(paths):
        raise NotApplicable("; ".join(unjudged))
    if wrong:
        first = next(iter(wrong.values()))
        message = f"{len(wrong)} of {len(paths)} paths ({', '.join(wrong)}): {first.message}"
        raise WrongAnswer(first.kind, message, where=tuple(wrong))


CROSS_ATTENTION = (
    "multi-head/none/mha/{dt}/b2h3q5k9d4/e12.12.12.12/nobias",
    "sdpa/none/mha/{dt}/b2h3q17k23d8",
)
"""Keys and values that can be one array, with other queries, as in a decoder's cross-attention."""


@check(
    cases_of(
        Ask(*plain_patterns("multi-head"), dtypes="float32 first"),
        Ask(*CROSS_ATTENTION, dtypes="promise", since="standard"),
    )
)
def test_one_memory(cell: Cell) -> None:
    """One array as keys and values equals two equal arrays."""
    inputs = cell.inputs.replace(value=cell.inputs.key)
    prepared = cell.prepare(inputs)
    key, value = (prepared.argument(name) for name in ("key", "value"))
    shared = replace(prepared, arguments=prepared.arguments | {value: prepared.arguments[key]})
    cell.judge(cell.read(cell.call(shared), inputs, shared), inputs)
