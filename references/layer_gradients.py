"""Gradients of the layers around attention, with how far rounding can move them.

The chain of `references.gradients` leads from the cotangent of an output to ds, the gradient of the
scores before the softmax, and to dv; what follows is what lies before the scores and behind the output:

    projection      y = x W + b:  dx = dy W^T,  dW = sum over samples and positions of x^T dy,
                    db = sum of dy;  one tensor as query, key and value: dx = the sum of all three
    dot             s_ij = c q_i . k_j:  dc = sum_ij ds_ij q_i . k_j,  dq and dk as for attention
    tanh            s_ij = c sum_u w_u h_iju,  h = tanh(a x),  x_iju = Q_iu + K_ju:
                    dc = sum_ij ds_ij r_ij  with r = s / c;   dr = c ds;   dw_u = sum_ij dr_ij h_iju
                    dy_iju = dr_ij w_u (1 - h_iju^2);   da = sum_iju dy_iju x_iju
                    dx = a dy;   dQ_iu = sum_j dx_iju;   dK_ju = sum_i dx_iju

Sources: Vaswani et al. 2017, section 3.2; Bahdanau, Cho, Bengio, ICLR 2015, appendix A.1.2 (c = a = 1);
Luong, Pham, Manning, EMNLP 2015, as Keras reads concat (w of ones). Derivatives by the chain rule.

Bounds, by running error analysis, in the notation of `suite.judge.tolerance`: every step takes operands
that come with bounds and adds its own rounding.

    dW, db, sums    Stored for every sample and then summed, or one sum; db over broadcast axes, so that a
                    framework may make it in the case's dtype (gamma_n(u_o)).
    dx of one       Three products, each stored, and their sum, whose partial sums are; or one product
    tensor          over the features of all three.
    dr, dx          Products with a number, stored like a score.
    dy              The slope by h as it was stored: 1 - (h + e)^2 is off by (2 |h| + |e|) |e|, and by
                    its own roundings (see `references.gradients.times_slope`).
    dQ, dK          Sums over a broadcast axis, stored once.
    dc, da, dw      Products element by element, each stored like a score, and their sum, which is one
                    over broadcast axes, or a product of matrices, stored once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from references.gradients import (
    Backward,
    absolute,
    product,
    summed,
    times_slope,
    transposed,
)
from references.layers import number, tanh_scores
from references.running import Approx, Roundoffs, gamma, linear, narrowed, stored


def multi_head_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    rounding: Roundoffs,
    allowed: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    empty_rows: str = "zeros",
    narrow_biases: Collection[str] = (),
    own: bool = False,
) -> dict[str, Approx]:
    """Gradients of `references.layers.multi_head` by query, key, value and every parameter.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev), cotangent (B, Lq, Eo); parameters canonical,
    with an output kernel or without; their gradients have their shapes. `empty_rows` as in
    `attention_gradients`. `own`: the three are one tensor, whose gradient is that of "query".

    The chain of attention between two of projections. Libraries
    scale the query and store it before the product: u_o more on every product of scores, on dq, and on
    every query that dk sums. The gradients of `narrow_biases` are sums in the case's dtype.
    """
    u = rounding
    x = {n: narrowed(a, u) for n, a in (("query", query), ("key", key), ("value", value))}
    projected = {
        n: linear(x[n], parameters[f"{n}_kernel"], parameters.get(f"{n}_bias"), u).moved(2, 1)
        for n in x
    }  # (B, heads, L, size)
    B, Lq, _ = query.shape
    H, Dv = projected["query"].shape[1], projected["value"].shape[-1]
    received = heads = narrowed(cotangent, u)
    mixing = parameters.get("output_kernel")
    if mixing is not None:
        heads = linear(received, np.ascontiguousarray(mixing.reshape(H * Dv, -1).T), None, u)
    heads = heads.reshape(B, Lq, H, Dv).moved(2, 1)
    q, k, v = (projected[n] for n in ("query", "key", "value"))
    chain = Backward(q, k, v, heads, u, allowed, bias, None, None, 0.0, empty_rows)
    chain.scaled_query = True
    with np.errstate(all="ignore"):
        inner = chain.gradients()
    found: dict[str, Approx] = {}
    if mixing is not None:
        group = H // k.value.shape[1]
        with np.errstate(all="ignore"):
            weights, averaging = chain.shared
            summands = chain.keys[..., None] + averaging * weights.value.shape[-1]
            output = product(weights, v.repeated(group, 1), summands, u)
        joined = stored(output, u.output, u.floor).moved(1, 2).reshape(B, Lq, H * Dv)
        found["output_kernel"] = kernel_gradient(joined, received, u).reshape(*mixing.shape)
    if "output_bias" in parameters:
        found["output_bias"] = bias_gradient(received, u, "output_bias" in narrow_biases)
    products, features = np.zeros(1), 0
    for name, moved in (("query", inner.query), ("key", inner.key), ("value", inner.value)):
        kernel = parameters[f"{name}_kernel"]
        flat = moved.moved(1, 2).reshape(B, moved.value.shape[2], -1)  # (B, L, heads size)
        across = kernel.reshape(kernel.shape[0], -1).T
        found[name] = linear(flat, across, None, u)
        if own:
            products, features = products + flat.size @ absolute(across), features + len(across)
        found[f"{name}_kernel"] = kernel_gradient(x[name], flat, u).reshape(*kernel.shape)
        if f"{name}_bias" in parameters:
            made = bias_gradient(flat, u, f"{name}_bias" in narrow_biases)
            found[f"{name}_bias"] = made.reshape(*kernel.shape[1:])
    if own:
        parts = [found.pop(name) for name in ("query", "key", "value")]
        found["query"] = from_one_tensor(parts, products, features, u)
    return found


def from_one_tensor(
    parts: Sequence[Approx], products: np.ndarray, features: int, u: Roundoffs
) -> Approx:
    """The sum of what a tensor receives as query, key and value, each part stored; `products` are the
    sums of |dy W^T| over all of the `features` that one product would sum."""
    value = np.sum([part.value for part in parts], 0)
    error = np.sum([part.error for part in parts], 0)
    error = error + gamma(features, u.accumulate) * products
    stores = len(parts) - 1
    size = np.sum([part.size for part in parts], 0)
    return Approx(value, error + stores * (u.output * size + u.floor))


def additive_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    rounding: Roundoffs,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
) -> dict[str, Approx]:
    """Gradients of `references.layers.additive` by query, key, value and every parameter.

    query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev), cotangent (B, Lq, Ev); gradients have the
    shapes of what they are of. `empty_rows` as in `references.gradients.attention_gradients`.
    """
    u = rounding
    x = {"query": narrowed(query, u), "key": narrowed(key, u)}
    kernels = {n: parameters.get(f"{n}_kernel") for n in x}
    q, k = (a if (w := kernels[n]) is None else linear(a, w, None, u) for n, a in x.items())
    vector = parameters.get("score_vector")
    found = _tanh_gradients(q, k, value, vector, 1.0, 1.0, cotangent, allowed, empty_rows, u)
    for name, kernel in kernels.items():
        if kernel is not None:
            found[f"{name}_kernel"] = kernel_gradient(x[name], found[name], u)
            found[name] = linear(found[name], np.ascontiguousarray(kernel.T), None, u)
    return found


def concat_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    rounding: Roundoffs,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
) -> dict[str, Approx]:
    """Gradients of `references.layers.concat`; arguments are those of `additive_gradients`."""
    scale, weight = number(parameters, "scale"), number(parameters, "concat_weight")
    return _tanh_gradients(
        narrowed(query, rounding), narrowed(key, rounding), value, None, scale, weight, cotangent,
        allowed, empty_rows, rounding,
    )  # fmt: skip


def dot_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    rounding: Roundoffs,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
) -> dict[str, Approx]:
    """Gradients of `references.layers.dot`; arguments are those of `additive_gradients`."""
    u = rounding
    q, k = narrowed(query, u), narrowed(key, u)
    v, received = _headed(narrowed(value, u)), _headed(narrowed(cotangent, u))
    chain = Backward(
        _headed(q), _headed(k), v, received, u, allowed, None, number(parameters, "scale"), None, 0.0,
        empty_rows,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        inner = chain.gradients()
        scores = stored(product(q, transposed(k), q.value.shape[-1], u), u.score)
        return {
            "query": _headless(inner.query),
            "key": _headless(inner.key),
            "value": _headless(inner.value),
            "scale": _contracted(_headless(inner.scores), scores, 0, u),
        }


def masked_gradients(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    parameters: Mapping[str, np.ndarray],
    cotangent: np.ndarray,
    *,
    rounding: Roundoffs,
    allowed: np.ndarray | None = None,
    empty_rows: str = "zeros",
) -> dict[str, Approx]:
    """Gradients of `references.layers.masked`; arguments are those of `additive_gradients`."""
    q, k, v, received = (_headed(narrowed(x, rounding)) for x in (query, key, value, cotangent))
    chain = Backward(q, k, v, received, rounding, allowed, None, None, None, 0.0, empty_rows)
    with np.errstate(all="ignore"):
        inner = chain.gradients()
    return {n: _headless(getattr(inner, n)) for n in ("query", "key", "value")}


class _Scored(Backward):
    """The chain behind scores (B, 1, Lq, Lk) that are no products of queries and keys."""

    def __init__(
        self, scores: Approx, value: Approx, cotangent: Approx, rounding: Roundoffs,
        allowed: np.ndarray | None, empty_rows: str,
    ) -> None:  # fmt: skip
        # The scores stand for queries and the values for keys, whose product is never made.
        super().__init__(
            scores, value, value, cotangent, rounding, allowed, None, None, None, 0.0, empty_rows
        )
        self.given = scores

    @property
    def capped(self) -> tuple[Approx, np.ndarray]:  # type: ignore[override]
        return self.given, np.zeros(self.given.shape)


def _tanh_gradients(
    q: Approx, k: Approx, value: np.ndarray, vector: np.ndarray | None, scale: float, weight: float,
    cotangent: np.ndarray, allowed: np.ndarray | None, empty_rows: str, u: Roundoffs,
) -> dict[str, Approx]:  # fmt: skip
    """Gradients by Q and K as "query" and "key", by value, and by every parameter there may be."""
    made = tanh_scores(q, k, vector, scale, weight, u)
    v, received = (_headed(narrowed(x, u)) for x in (value, cotangent))
    chain = _Scored(_headed(made.scores), v, received, u, allowed, empty_rows)
    with np.errstate(all="ignore"):
        ds = _headless(chain.score_gradient)  # (B, Lq, Lk)
        dr = ds if weight == 1.0 else _times(ds, weight, u)
        spread = Approx(dr.value[..., None], dr.error[..., None])
        dh = spread if vector is None else _times(spread, vector, u)
        dy = times_slope(dh, made.hidden, u, chain.score_floor)  # (B, Lq, Lk, U)
        dx = dy if scale == 1.0 else _times(dy, scale, u)
        found = {"value": _headless(chain.value_gradient)}
        for name, axis in (("query", 2), ("key", 1)):
            total = stored(summed(dx, (axis,), u), u.output, u.floor)
            found[name] = Approx(total.value.squeeze(axis), total.error.squeeze(axis))
        found["score_vector"] = _contracted(spread, made.hidden, 1, u)
        found["concat_weight"] = _contracted(ds, made.sums, 0, u)
        found["scale"] = _contracted(dy, made.pairs, 0, u)
    return found


def _headed(x: Approx) -> Approx:
    """(B, L, width) as one head, (B, 1, L, width)."""
    return Approx(x.value[:, None], x.error[:, None])


def _headless(x: Approx) -> Approx:
    return Approx(x.value[:, 0], x.error[:, 0])


def _times(x: Approx, by: np.ndarray | float, u: Roundoffs) -> Approx:
    """x times exact numbers, stored like a score."""
    made = Approx(x.value * by, x.error * absolute(np.asarray(by)))
    return stored(made, u.score + u.accumulate, u.floor)


def _contracted(a: Approx, b: Approx, kept: int, u: Roundoffs) -> Approx:
    """The sum of a b over all but the `kept` last axes, each product stored; shapes broadcast."""
    error = a.error * b.size + absolute(a.value) * b.error
    each = stored(Approx(a.value * b.value, error), u.score + u.accumulate, u.product_underflow)
    axes = tuple(range(each.value.ndim - kept))
    total = stored(summed(each, axes, u), u.output, u.floor)
    return Approx(total.value.squeeze(axes), total.error.squeeze(axes))


def kernel_gradient(x: Approx, moved: Approx, u: Roundoffs) -> Approx:
    """sum over samples and positions of x^T dy, x (B, L, n), dy (B, L, m): sample by sample, or all in
    one sum."""
    each = product(transposed(x), moved, x.value.shape[1], u)
    total = _over_samples(each, u)
    whole = (transposed(x).size @ moved.size).sum(0)
    error = total.error + gamma(x.value.shape[0] * x.value.shape[1], u.accumulate) * whole
    return stored(Approx(total.value, error), u.output, u.floor)


def bias_gradient(moved: Approx, u: Roundoffs, narrow: bool = False) -> Approx:
    """The sum of dy (B, L, m) over samples and positions likewise; `narrow`: in the case's dtype."""
    rows = summed(moved, (1,), u)
    total = _over_samples(Approx(rows.value[:, 0], rows.error[:, 0]), u)
    count, unit = moved.value.shape[0] * moved.value.shape[1], max(u.accumulate, u.reduction)
    unit = max(unit, u.output) if narrow else unit
    error = total.error + gamma(count, unit) * moved.size.sum((0, 1))
    return stored(Approx(total.value, error), u.output, u.floor)


def _over_samples(each: Approx, u: Roundoffs) -> Approx:
    """The sum over the first axis of parts that are stored in the case's dtype."""
    total = summed(stored(each, u.output, u.floor), (0,), u)
    return Approx(total.value[0], total.error[0])
