"""Promise: errors are as small as with random roundings, and not correlated with the output or with
changes of one array.

So an error of 1 % in gradients and layers is found in bfloat16, except for very small outputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.derivative import vjp
from attention_conformance.suite.judge.monte_carlo import (
    DRAWS,
    ErrorStatistics,
    forward_samples,
    gradient_samples,
    scaling_directions,
)
from attention_conformance.suite.judge.tolerance import RMS_CLASSES
from attention_conformance.suite.judge.verdict import NotApplicable
from attention_conformance.suite.spec.catalogue import Ask, cases_of, plain_patterns
from attention_conformance.suite.spec.inputs import Inputs, draw, draw_cotangent

MOST_SCORES = 1 << 17
"""With more scores the reference takes seconds, for example in long rows of implementations that
support equal lengths only."""

SHORT = (
    "sdpa/none/mha/{dt}/b4h4q4k4d4",
    *plain_patterns("multi-head"),
)

# Enough numbers that a correlated error exceeds the random roundings of bfloat16.
WIDE = (
    "sdpa/none/mha/{dt}/b2h3q17k23d8",
    "sdpa/causal/gqa2/{dt}/b2h4q11k9d6",
    "sdpa/bool.bhqk/mha/{dt}/b2h3q5k13d8v10/bias.bhqk/dense",
    *plain_patterns("packed"),
    "latent/causalbr/mha/{dt}/b2h3q4k9d8v6",
    *plain_patterns("rotary", "layer-norm"),
    "batch-norm/none/mha/{dt}/b32h1q3k3d64/e64.64.64.64/self/train",
    "encoder/causal/mha/{dt}/b2h4q7k7d3/e12.12.12.20/pre/gelu/self",
    "encoder/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.20/gelu/self",
)
# The only bound of these in 16 bits. Gradients jump with relu: a number near 0 may have one sign in the
# output, and the other sign in all random samples.
KINKED = (
    *plain_patterns("encoder"),
    "encoder/causal+pad/mha/{dt}/b2h4q7k7d3/e12.12.12.20/self",
    "encoder/bool.qk/mha/{dt}/b2h4q7k7d3/e12.12.12.20/self/dense",
    "encoder/bool.bhqk/mha/{dt}/b2h4q7k7d3/e12.12.12.20/self/dense",
    "encoder/pad/mha/{dt}/b2h4q7k7d3/e12.12.12.20/pre/self",
)

WIDE_LAYERS = (
    "multi-head/none/mha/bf16/b8h3q17k23d8/e24.24.24.24",
    # Bounds of norms over so few numbers are wide in 16 bits.
    "multi-head/none/mha/bf16/b8h3q17k23d8/e24.24.24.24/qknorm/eps1e-06",
    "multi-head/none/mha/bf16/b8h1q17k17d8v12/e24.24.24.12/self-attention/self",
    "additive/none/mha/bf16/b8h1q17k23d16v14/e12.10.14.14",
    "dot/none/mha/bf16/b8h1q17k23d8v6/e8.8.6.6",
    "concat/none/mha/bf16/b8h1q17k23d8v6/e8.8.6.6",
)
CAPPED = "sdpa/none/mha/{dt}/b2h3q17k23d8/cap2.0"

# The same layers in float16, in sizes of other checks.
SMALL_LAYERS = (
    "multi-head/none/mha/f16/b2h1q7k7d5v6/e12.12.12.6/self-attention/self/head",
    "additive/none/mha/f16/b2h1q5k9d16v14/e12.10.14.14",
    "dot/none/mha/f16/b2h1q5k9d8v6/e8.8.6.6",
    "concat/none/mha/f16/b2h1q5k9d8v6/e8.8.6.6",
)

LONG = [f"sdpa/none/mha/{dt}/b1h2q3k2049d16" for dt in ("f32", "bf16", "f16")]
"""In long rows the worst-case bound of a sum is wider than one key, or ten keys."""


SHORT_AND_WIDE = (
    Ask(*SHORT, dtypes="sixteen"),
    Ask(*WIDE, CAPPED, dtypes="sixteen", since="standard"),
    Ask(*WIDE_LAYERS, since="standard"),
    Ask(*SMALL_LAYERS, since="standard"),
)
LONG_AND_KINKED = (
    Ask(*KINKED, dtypes="sixteen", since="standard"),
    Ask(*LONG, since="standard"),
)


@check(cases_of(*SHORT_AND_WIDE, *LONG_AND_KINKED))
def test_spread(cell: Cell) -> None:
    """Errors of the output are as small as random rounding, and in 16 bits uncorrelated. In float32
    only their size is judged, because constants rounded once give correlated errors."""
    require_rounding_model(cell)
    roundoffs = cell.rounding.roundoffs(cell.inputs)
    output = ErrorStatistics("the output")
    for inputs, _ in draws(cell):
        drawn = forward_samples(inputs, roundoffs)
        correlates = (
            {"the answer": drawn.exact, **scaling_directions(inputs)}
            if inputs.dtype.is_half
            else {}
        )
        output.add(cell.run(inputs).arrays["output"], drawn, correlates)
    judge(cell, [output])


@check(cases_of(*SHORT_AND_WIDE), ("gradient",))
def test_gradient_spread(cell: Cell) -> None:
    """Errors of every gradient are as small as random rounding, and uncorrelated."""
    require_rounding_model(cell)
    roundoffs = cell.rounding.roundoffs(cell.inputs, backward=True)
    spreads: dict[str, ErrorStatistics] = {}
    for inputs, seed in draws(cell):
        cotangent = draw_cotangent(inputs.case, seed)
        _, gradients = vjp(cell, inputs, cotangent=cotangent)
        drawn = gradient_samples(inputs, cotangent, roundoffs)
        for name, values in gradients.items():
            spread = spreads.setdefault(name, ErrorStatistics(f"the gradient of the {name}"))
            spread.add(values, drawn[name], {"the gradient": drawn[name].exact})
    judge(cell, list(spreads.values()))


def require_rounding_model(cell: Cell) -> None:
    """Raise NotApplicable if roundings are not random, not all modelled, or too many to draw."""
    if not cell.implementation.declared.takes_parameters:
        raise NotApplicable("the layer makes its own parameters: its reference is unknown")
    if cell.numerics not in RMS_CLASSES:
        raise NotApplicable(f"sums in the dtype of the case ({cell.numerics}) are not modelled")
    if cell.dtype.name in cell.rounding.declared.truncates_matmul:
        raise NotApplicable("truncated products have errors of one sign")
    if cell.inputs.has_empty_rows:
        raise NotApplicable("fully masked rows are an election")
    s = cell.inputs.sizes
    if s.pairs > MOST_SCORES:
        raise NotApplicable(f"more than {MOST_SCORES} scores: the reference is too slow to repeat")


def draws(cell: Cell) -> Iterator[tuple[Inputs, int]]:
    """Yields pairs of inputs of the case and the seed that they are drawn with, for `DRAWS` seeds."""
    case = cell.inputs.case
    for seed in range(cell.seed * DRAWS, (cell.seed + 1) * DRAWS):
        yield elections.with_flag_mask(draw(case, seed), cell.implementation), seed


def judge(cell: Cell, spreads: list[ErrorStatistics]) -> None:
    """Set `cell.measured.rms` to the largest RMS error, and judge the errors of every array. Raises
    WrongAnswer."""
    cell.measured.rms = max(spread.rms for spread in spreads)
    for spread in spreads:
        spread.judge()
