"""Promise: in training, dropout keeps each weight with probability 1 - rate, times 1 / (1 - rate).

The gradient uses the same pattern as the output. The inputs make the output show the weights:

- scores are zero, so weights are uniform;
- values are unit vectors with every feature twice, to tell dropout of the weights from dropout of the
  output;
- every later projection of a layer is the identity.

Random counts are judged by exact binomial tails, and means by Bernstein's inequality. A right
implementation fails a comparison with probability `FALSE_ALARM`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.backends.protocol import PreparedCall
from attention_conformance.references.rounding import gamma
from attention_conformance.suite.judge import elections
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.derivative import vjp
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.dtypes import round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import parse_mask

FALSE_ALARM = 1e-9
"""The probability that a right implementation fails one comparison."""

RATE = 0.25

MEAN_RATE, SEEDS = 0.5, 96
"""Rate and number of patterns in a mean."""

ATTENTION = "sdpa/none/mha/{dt}/b32h2q4k4d8"
LAYERS = (
    "multi-head/none/mha/f32/b32h2q4k4d8/e16.16.16.16/self",
    "dot/none/mha/f32/b64h1q4k4d8/e8.8.8.8/unscaled",
    "additive/none/mha/f32/b64h1q4k4d8/e8.8.8.8/identity",
)
HALF_LAYER = "multi-head/none/mha/bf16/b32h2q4k4d8/e16.16.16.16/self"
MANY_HEADS = (
    "sdpa/none/mha/f32/b16h17q4k4d8",
    "sdpa/none/gqa2/f32/b16h4q4k4d8",
    "multi-head/none/mha/f32/b16h17q4k4d8/e136.136.136.136/self",
)
"""A pattern of 2, 4, 8 or 16 heads that is repeated is the same in the first and the last of 17 heads.
Grouped heads have a pattern each."""

ATTENTION_CASES = cases_of(Ask(ATTENTION, dtypes="growing halves"))
CASES = cases_of(
    Ask(ATTENTION, dtypes="growing halves"),
    Ask(*LAYERS),
    Ask(HALF_LAYER, *MANY_HEADS, since="standard"),
)


def showing_weights(inputs: Inputs, rate: float) -> Inputs:
    """Returns inputs whose output shows the weights after dropout at this rate, in two copies (see
    `two_copies`). Before dropout the weights of a row are equal."""
    s = inputs.sizes
    unit = np.tile(np.eye(s.Lk), 2)
    if "output_kernel" not in inputs.arrays:
        arrays = {
            "query": np.zeros_like(inputs.query),
            "key": np.zeros_like(inputs.key),
            "value": np.broadcast_to(unit, inputs.value.shape).copy(),
        }
        return inputs.replace(rate=rate, training=True, **arrays)
    x = np.zeros_like(inputs.query)
    x[:, :, : s.Lk] = np.eye(s.Lk)
    arrays = {n: np.zeros_like(a) for n, a in inputs.parameters.items()}
    for h in range(s.H):
        arrays["value_kernel"][: s.Lk, h] = unit
    arrays["output_kernel"] = np.eye(s.H * s.Dv).reshape(s.H, s.Dv, -1)
    return inputs.replace(rate=rate, training=True, query=x, key=x, value=x, **arrays)


def two_copies(output: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Returns an output for the inputs of `showing_weights`, or its bound, in the shape (B, Lq, H, 2,
    Lk): two copies of the weights."""
    s = inputs.sizes
    if not inputs.operator.is_layer:
        output = output.swapaxes(1, 2)
    return output.reshape(s.B, s.Lq, s.H, 2, s.Lk)


def two_sided_tail(n: int, p: float, count: int) -> float:
    """Returns the two-sided tail probability of `count` successes in `n` trials with probability `p`."""
    from scipy.special import bdtr, bdtrc

    return float(2 * min(bdtr(count, n, p), bdtrc(count - 1, n, p)))


def expect_probable(n: int, p: float, count: int, what: str) -> None:
    """Raise WrongAnswer "dropout" if `count` successes in `n` trials with probability `p` are less likely
    than `FALSE_ALARM`."""
    chance = two_sided_tail(n, p, count)
    if chance < FALSE_ALARM:
        message = f"{what}: {count} of {n}, expected {p:.4g} of them"
        raise WrongAnswer(
            "dropout", f"{message}; the chance of that is {chance:.1g}", where=(what,)
        )


def kept_weights(
    cell: Cell, inputs: Inputs, path: str = "", call: PreparedCall | None = None
) -> np.ndarray:
    """Returns a boolean array (B, Lq, H, Lk): True for attended weights that dropout kept.

    `inputs` as from `showing_weights`. `call` is the call of the code path `path`, by default the call
    for `inputs`. Raises WrongAnswer "dropout" if a kept weight is wrong."""
    answer = cell.run(inputs) if call is None else cell.read(cell.call(call), inputs, call)
    copies = two_copies(answer.values, inputs)
    prefix = f"{path}: " if path else ""
    if not np.array_equal(copies[:, :, :, 0], copies[:, :, :, 1]):
        raise WrongAnswer("dropout", f"{prefix}two features of one value are not dropped together")
    got, attended = copies[:, :, :, 0], attended_pairs(inputs)
    want = attended / (attended.sum(-1, keepdims=True) * (1.0 - inputs.rate))
    # Weight, rescaling and the product with ones add at most three roundings to the bound.
    limit = two_copies(cell.bound(inputs.replace(rate=0.0, training=False)), inputs)[:, :, :, 0]
    limit = limit / (1.0 - inputs.rate) + 3 * cell.dtype.unit_roundoff * want
    dropped, is_kept = got == 0, attended & (np.abs(got - want) <= limit)
    _expect_everywhere(
        dropped | is_kept,
        lambda at: (
            f"{prefix}a kept weight is {float(got[at]):.6g}, expected 0 or {want[at]:.6g} = weight / "
            "(1 - rate)"
        ),
        lambda: _weight_fault(got, want),
    )
    return is_kept


def _weight_fault(got: np.ndarray, want: np.ndarray) -> str:
    """Returns the fault of wrong kept weights in a few words, for comparison with other failures."""
    # A row whose keys were all dropped may be NaN.
    sums = got.sum(-1)[got.any(-1) & np.isfinite(got).all(-1)]
    weights = (got != 0) & (want != 0)
    if weights.sum() == (want != 0).sum():
        return "nothing is dropped"
    if np.abs(sums - 1).max(initial=0.0) < 1 / 64:
        return "rows sum to 1"
    return f"{np.median(got[weights] / want[weights]):.2g} times the weight"


def attended_pairs(inputs: Inputs) -> np.ndarray:
    """Returns the attended pairs as a boolean array (B, Lq, H, Lk)."""
    s = inputs.sizes
    pairs = np.broadcast_to(inputs.attends, (s.B, s.H, s.Lq, s.Lk))
    return pairs.transpose(0, 2, 1, 3)


def _expect_everywhere(
    right: np.ndarray,
    message: Callable[[tuple[int, ...]], str],
    fault: Callable[[], str] | None = None,
) -> None:
    """Raise WrongAnswer "dropout" unless all of `right` is True. `message(index)` describes the first
    wrong element, `fault()` all wrong elements."""
    if not right.all():
        index = tuple(int(i) for i in np.argwhere(~right)[0])
        text = f"{message(index)}; {int((~right).sum())} of {right.size}"
        raise WrongAnswer("dropout", text, where=(fault(),) if fault else ())


@check(CASES, ("dropout",))
def test_dropout(cell: Cell) -> None:
    pattern, rate = cell.implementation.declared.dropout, RATE
    inputs = showing_weights(cell.inputs, rate)
    first = kept_weights(cell, inputs)
    heads = first.shape[2]
    independent = first[:1, :, :1] if pattern == "shared" else first
    if pattern == "shared" and not (first == independent).all():
        raise WrongAnswer(
            "dropout", "expected the declared one pattern for all samples and heads, got several"
        )
    expect_probable(independent.size, 1 - rate, int(independent.sum()), "weights kept")
    pairs = {
        "queries": (independent[:, ::2], independent[:, 1::2]),
        "keys": (independent[..., ::2], independent[..., 1::2]),
    }
    if pattern == "elements":
        pairs["samples"] = first[::2], first[1::2]
        if heads > 1:
            pairs["heads"] = first[:, :, 0], first[:, :, -1]
    chance = rate**2 + (1 - rate) ** 2  # both weights of a pair are kept, or both are dropped
    for what, (half_1, half_2) in pairs.items():
        equal = int((half_1 == half_2).sum())
        expect_probable(half_1.size, chance, equal, f"equal between two {what}")
    if not np.array_equal(kept_weights(cell, inputs), first):
        raise WrongAnswer("dropout", "the same seed gave another pattern")
    if np.array_equal(kept_weights(cell, inputs.replace(dropout_seed=1)), first):
        raise WrongAnswer("dropout", "another seed gave the same pattern")
    for masked in with_masks(cell, inputs):
        got = two_copies(cell.run(masked).values, masked)[:, :, :, 0]
        if got[~attended_pairs(masked)].any():
            raise WrongAnswer("leak", "with dropout, a hidden pair has a weight")
    if inputs.operator.is_layer:
        return
    half = inputs.select("q", slice(0, inputs.sizes.Lq // 2))
    bottom_right = half.replace(mask=parse_mask("causalbr"), form="native")
    for problem in (inputs, *with_masks(cell, inputs), bottom_right):
        if cell.implementation.missing(problem.needs) is None:
            expect_dropout_in_paths(cell, problem)


def expect_dropout_in_paths(cell: Cell, inputs: Inputs) -> None:
    """Judge the dropout of every code path of the implementation. Raises WrongAnswer."""
    attended = attended_pairs(inputs)
    shared = cell.implementation.declared.dropout == "shared"
    # A shared pattern is counted once: for one sample and one head.
    independent = (slice(1), slice(None), slice(1)) if shared else ...
    for name, prepared in cell.implementation.paths(inputs).items():
        is_kept = kept_weights(cell, inputs, name, prepared)[independent]
        total, count = int(attended[independent].sum()), int(is_kept.sum())
        expect_probable(total, 1 - inputs.rate, count, f"weights kept by {name}")


def with_masks(cell: Cell, inputs: Inputs) -> list[Inputs]:
    """Returns the inputs with a causal and with a padding mask, if the implementation supports these."""
    masks = (parse_mask(token) for token in ("causal", "pad"))
    variations = [
        elections.with_flag_mask(inputs.replace(mask=m), cell.implementation) for m in masks
    ]
    return [x for x in variations if cell.implementation.missing(x.needs) is None]


@check(CASES, ("dropout",))
def test_dropout_off(cell: Cell) -> None:
    """In evaluation, and at rate 0, dropout changes nothing, with or without masks. At rate 1 the
    output is zero; user code may refuse this rate, and is not tested at it."""
    inputs = cell.inputs
    for no_dropout in (inputs, *with_masks(cell, inputs)):
        for what, changed in (
            ("in evaluation", no_dropout.replace(rate=0.5)),
            ("at rate 0", no_dropout.replace(rate=0.0, training=True)),
        ):
            try:
                cell.judge(cell.run(changed), no_dropout)
            except WrongAnswer as deviation:
                message = f"{what}: {deviation.message}"
                raise WrongAnswer(deviation.kind, message, where=(what,)) from deviation
    if cell.implementation.declared.is_user_code:
        return
    got = cell.run(showing_weights(inputs, 1.0)).values
    if (got != 0).any():
        raise WrongAnswer("dropout", f"at rate 1 an output is {float(got[got != 0][0])!r}, not 0")


@check(ATTENTION_CASES, ("gradient", "dropout"))
def test_dropout_gradients(cell: Cell) -> None:
    """The gradients use the same dropout pattern as the output of the same seed.

    With the kept pairs M as ones and zeros, P = 1 / Lk, dP = M dO V^T / (1 - rate) and dS = P (dP - sum
    P dP): dV = M^T P dO / (1 - rate), dQ = scale dS K, dK = scale dS^T Q. Weights are uniform if
    queries or keys are zero, so dQ is tested with nonzero keys, and dK with nonzero queries.
    """
    dtype, dO = cell.dtype, round_to(cell.cotangent, cell.dtype).astype(float)
    dropped = showing_weights(cell.inputs, RATE)
    factor = kept_weights(cell, dropped).transpose(0, 2, 1, 3) / (1.0 - RATE)  # (B, H, Lq, Lk)
    s = dropped.sizes
    # Roundings: dot products, two sums over keys, one over queries, softmax, rescaling, scale, store.
    relative = gamma(s.Dv + 2 * s.Lk + s.Lq + 16, dtype.unit_roundoff)
    for name, partner in (("query", "key"), ("key", "query")):
        operand = round_to(getattr(cell.inputs, partner), dtype).astype(float)
        inputs = dropped.replace(**{partner: operand})
        _, got = vjp(cell, inputs, (name, "value"))
        for wrt in (name, "value"):
            arrays = [dO, dropped.value, factor, operand]
            want = _uniform_gradient(wrt, arrays, dropped.effective_scale, -1)
            magnitudes = [np.abs(x) for x in arrays]
            limit = relative * _uniform_gradient(wrt, magnitudes, dropped.effective_scale, 1)
            _expect_within(got[wrt], want, limit, f"the gradient of the {wrt}")


RECOMPUTED_CASES = cases_of("sdpa/none/mha/f32/b32h2q4k4d8")


@check(RECOMPUTED_CASES, ("gradient", "dropout"), compiled=RECOMPUTED_CASES)
def test_dropout_recomputed(cell: Cell) -> None:
    """Forward and backward pass have one pattern if the backward pass computes the forward pass again: in
    checkpoints, and in compiled programs that keep fewer activations."""
    inputs, backend = showing_weights(cell.inputs, 0.0), cell.implementation.backend
    compiler = getattr(cell.implementation, "compiler", "")
    eager = getattr(cell.implementation, "inner", cell.implementation)
    prepared = eager.prepare(inputs.replace(training=False))
    calls = backend.recomputed(prepared, RATE, compiler)
    if not calls:
        raise NotApplicable("no call is computed again in a backward pass")
    dO = round_to(cell.cotangent, cell.dtype).astype(float)
    relative = gamma(inputs.sizes.Lk + inputs.sizes.Lq + 16, cell.dtype.unit_roundoff)
    for name, call in calls.items():
        answer, got = vjp(cell, inputs, ("value",), prepared=call)
        is_kept = two_copies(answer.values, inputs)[:, :, :, 0].transpose(0, 2, 1, 3) != 0
        expect_probable(is_kept.size, 1 - RATE, int(is_kept.sum()), f"{name}: weights kept")
        factor = is_kept / (1.0 - RATE)
        want, limit = (
            _uniform_gradient("value", [array, inputs.value, factor, inputs.key], 1.0, 1)
            for array in (dO, np.abs(dO))
        )
        _expect_within(got["value"], want, relative * limit, f"{name}: the gradient of the value")


def _uniform_gradient(wrt: str, arrays: list[np.ndarray], scale: float, sign: int) -> np.ndarray:
    """Returns the gradient of the operand `wrt` for uniform weights times a factor, with `sign` -1.
    `arrays` are dO, V, the factor (B, H, Lq, Lk), and the key (for the query's gradient) or the query
    (for the key's).

    For absolute values and `sign` 1, returns the magnitudes that rounding errors are relative to.
    """
    dO, V, factor, operand = arrays
    P = 1.0 / factor.shape[-1]
    if wrt == "value":
        return P * factor.swapaxes(-1, -2) @ dO
    dP = dO @ V.swapaxes(-1, -2) * factor
    dS = P * (dP + sign * P * dP.sum(-1, keepdims=True))
    return scale * (dS if wrt == "query" else dS.swapaxes(-1, -2)) @ operand


def _expect_within(got: np.ndarray, want: np.ndarray, limit: np.ndarray, what: str) -> None:
    """Raise WrongAnswer "dropout" if an element of `got` is NaN, or differs from `want` by more than its
    limit."""
    _expect_everywhere(
        np.abs(got - want) <= limit,
        lambda at: (
            f"{what} at {at}: got {float(got[at]):.6g}, expected {want[at]:.6g} within {limit[at]:.2g}"
        ),
    )


@check(ATTENTION_CASES, ("dropout",))
def test_dropout_mean(cell: Cell) -> None:
    """The mean over many seeds is the output without dropout, for any weights.

    An element is the sum of p_j v_j x_j / (1 - rate), with x_j = 1 with probability 1 - rate.
    Bernstein's inequality for n seeds: P(|sum - n mean| >= t) <= 2 exp(-t^2 / 2 / (n var + m t / 3)),
    with var = sum (p_j v_j)^2 rate / (1 - rate) and m the largest deviation of one term (Boucheron,
    Lugosi and Massart, Concentration Inequalities, 2013, theorem 2.10).
    """
    from scipy.special import softmax

    inputs = cell.inputs
    outputs = [
        cell.run(inputs.replace(rate=MEAN_RATE, training=True, dropout_seed=n)).values
        for n in range(SEEDS)
    ]
    operands = (inputs.query, inputs.key, inputs.value)
    q, k, v = (round_to(x, cell.dtype).astype(float) for x in operands)
    weights = softmax(inputs.effective_scale * q @ k.swapaxes(-1, -2), axis=-1)
    terms = np.abs(weights[..., None] * v[:, :, None])  # (B, H, Lq, Lk, Dv)
    variance = SEEDS * (terms**2).sum(-2) * MEAN_RATE / (1 - MEAN_RATE)
    largest = terms.max(-2) * max(1.0, MEAN_RATE / (1 - MEAN_RATE))
    exponent = np.log(2 * variance.size / FALSE_ALARM)
    third = exponent * largest / 3
    spread = third + np.sqrt(third**2 + 2 * exponent * variance)
    # Kept terms and their errors grow by 1 / (1 - rate), with two more roundings each.
    rounding = cell.bound(inputs) + 2 * cell.dtype.unit_roundoff * terms.sum(-2)
    limit = spread / SEEDS + rounding / (1 - MEAN_RATE)
    _expect_within(np.mean(outputs, 0), weights @ v, limit, f"the mean over {SEEDS} seeds")
