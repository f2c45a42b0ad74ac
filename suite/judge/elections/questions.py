"""Questions: the probe of each election question, and how its answers are distinguished. Those about
unusual numbers and about modes are in `suite.judge.elections.numbers` and `modes`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.suite.judge.elections import caches, modes, numbers
from attention_conformance.suite.judge.elections.lse import AGREES, named
from attention_conformance.suite.judge.elections.probe import (
    Probe,
    empty_row,
    nearly,
    unmasked,
)
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import Deviation, NotApplicable
from attention_conformance.suite.spec.binding import Binding
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Boolean, Causal


def _emptied(inputs: Inputs) -> Inputs:
    """The inputs with a mask that fully masks one row."""
    mask = np.ones((inputs.sizes.Lq, inputs.sizes.Lk), bool)
    mask[empty_row(inputs)] = False
    return inputs.replace(mask_array=mask, form="dense")


def _fully_masked(p: Probe) -> str:
    inputs = _emptied(p.inputs())
    return p.rows(p.values(inputs), inputs)


def _lse_of_empty(p: Probe) -> str:
    inputs = _emptied(p.inputs(lse=True))
    arrays = p.arrays(inputs)
    answer = _lse_in(p, inputs, arrays)
    biased = inputs.replace(mask_array=None, form="native", bias=_minus_inf_bias(inputs))
    if answer == "raises" or p.implementation.refuses(biased) is not None:
        return answer
    arrays = p.arrays(biased)
    other = _lse_in(p, biased, arrays)
    rows = (
        "nan" if arrays and np.isnan(arrays["output"][:, :, empty_row(biased)]).all() else "zeros"
    )
    if other not in (answer, *AGREES[rows]):
        raise Deviation(
            "election",
            f"the log-sum-exp of rows that a boolean mask hides is {answer}, and of rows that a bias of "
            f"-inf hides {other}",
        )
    return answer


def _lse_in(p: Probe, inputs: Inputs, arrays: dict[str, np.ndarray] | None) -> str:
    """The log-sum-exp of the fully masked rows of an answer to `inputs`."""
    if arrays is None:
        return "raises"
    got = arrays["lse"][:, :, empty_row(inputs)]
    name = named(got)
    if name:
        return name
    every = Oracle.forward(unmasked(inputs), p.rounding).expected["lse"]
    if nearly(arrays["lse"], every, inputs.fully_masked_rows):
        return "all-keys"
    raise Deviation("election", f"the log-sum-exp of rows without keys: {got.ravel()[:3]}")


def _gradient_of_lse(p: Probe) -> str:
    inputs = p.inputs(lse=True)
    cotangent = p.cotangent(inputs)[..., 0]
    got = p.lse_gradients(inputs, cotangent)
    if got is None:
        return "raises"
    if not any(gradient.any() for gradient in got.values()):
        return "nothing"
    if p.matches_gradients(got, inputs, cotangent, "zeros", "lse"):
        return "flows"
    raise Deviation("election", "the log-sum-exp has gradients, and they are wrong")


def _padded_sample(p: Probe) -> str:
    inputs = p.inputs("padempty")
    return p.rows(p.values(inputs), inputs)


def _minus_inf_bias(inputs: Inputs) -> np.ndarray:
    """A bias that is -inf in one row, and 0 elsewhere."""
    s = inputs.sizes
    bias = np.zeros((s.B, s.H, s.Lq, s.Lk))
    bias[:, :, empty_row(inputs)] = -np.inf
    return bias


def _minus_inf(p: Probe) -> str:
    base = p.inputs()
    inputs = base.replace(bias=_minus_inf_bias(base))
    return p.rows(p.values(inputs), inputs)


def _lowest(p: Probe) -> str:
    base = p.inputs()
    hidden = _minus_inf_bias(base)
    inputs = base.replace(bias=np.where(np.isneginf(hidden), -float(p.dtype.max), hidden))
    got = p.values(inputs)
    try:
        return p.rows(got, base.replace(bias=hidden))
    except Deviation:
        if got is None or p.operator.is_layer or not _merges_means(p, inputs):
            raise
        return "weighted"


def _merges_means(p: Probe, inputs: Inputs) -> bool:
    """True if the row of lowest scores is what a merge of parts of the keys by log-sum-exp can give.

    The log-sum-exp of every part absorbs the logarithm of the number of its keys. So each part is the
    mean of its values, and all parts weigh the same. Parts are added if their weights are
    exp(lse - total), whose total absorbs, too. Parts are averaged if the weights are normalised, all at
    once or two at a time. The weights of the keys then sum to a whole number, and each of them is at
    least 2^(1 - Lk): the first weight if keys are merged one after another.

    The value of key j is the unit vector j mod Dv, whose component reads the weight.
    """
    s = inputs.sizes
    units = np.eye(s.Dv)[np.arange(s.Lk) % s.Dv]
    got = p.values(inputs.replace(value=np.broadcast_to(units, inputs.value.shape)))
    if got is None:
        return False
    weights, keys = got[:, :, empty_row(inputs)], units.sum(0)
    total = weights.sum(-1)
    error = 16 * max(p.dtype.unit_roundoff, DTYPES["f32"].unit_roundoff)
    return bool(
        (weights >= keys * 2.0 ** (1 - s.Lk) * (1 - error)).all()
        and (weights <= keys * (1 + error)).all()
        and (np.abs(total - np.maximum(np.round(total), 1)) <= error * total).all()
    )


def _gradient_of_minus_inf(p: Probe) -> str:
    base = p.cross_with_its_mask()
    return _gradient_of(p, base.replace(bias=_minus_inf_bias(base)))


def _gradient_of_empty_row(p: Probe) -> str:
    # Sizes that are differentiated elsewhere, too: some frameworks compile for each.
    inputs = p.cross_with_its_mask()
    return _gradient_of(p, inputs if inputs.has_empty_rows else _emptied(inputs))


def _gradient_of(p: Probe, inputs: Inputs) -> str:
    """The part of the call that the cotangent of the fully masked rows reaches."""
    cotangent = p.cotangent(inputs)
    got = p.gradients(inputs, cotangent)
    if got is None:
        return "raises"
    if any(np.isnan(gradient).any() for gradient in got.values()):
        return "nan"
    for name, mode in (("nothing", "zeros"), ("values", "uniform"), ("scores", "scores")):
        if p.matches_gradients(got, inputs, cotangent, mode):
            return name
    if p.matches_gradients(got, unmasked(inputs), cotangent, "zeros", absorbed=True):
        return "scores"
    raise Deviation(
        "election",
        "the cotangent of fully masked rows goes neither nowhere, nor to the values, nor through the "
        "scores, and is not NaN",
    )


def _no_keys(p: Probe) -> str:
    got = p.values(p.inputs().select("k", slice(0, 0)), lacking=True)
    if got is None:
        return "raises"
    if np.isnan(got).all():
        return "nan"
    if (got == 0).all():
        return "zeros"
    raise Deviation(
        "election", f"an answer without keys is neither zeros nor NaN: {got.ravel()[:3]}"
    )


def _alignment(p: Probe) -> str:
    flagged = p.cross(mask=Causal())
    if p.operator.is_layer:
        alone = p.implementation.missing(["causal-alone"])
        if alone is not None:
            raise NotApplicable(alone)
        if _causal_alone(p) != "hides":
            if _causal_with_mask(p) != "intersect":
                raise NotApplicable("the causal flag counts neither alone nor beside a mask")
            every = np.ones((flagged.sizes.Lq, flagged.sizes.Lk), bool)
            flagged = flagged.replace(mask_array=every, form="flag-and-mask")
    got = p.values(flagged)
    if got is None:
        return "raises"
    for name, bottom_right in (("top-left", False), ("bottom-right", True)):
        if p.matches(got, p.cross(mask=Causal(bottom_right))):
            return name
    raise Deviation("election", "the causal flag gives neither top-left nor bottom-right")


def _causal_with_mask(p: Probe) -> str:
    base = p.inputs()
    if base.sizes.Lq != base.sizes.Lk:  # what the flag means there is another question
        base = base.select("k", slice(0, base.sizes.Lq))
    # Keys 0 are made visible so that no row is without keys under any reading.
    array = Boolean("b1qk").dense(base.sizes) | (np.arange(base.sizes.Lk) == 0)
    causal = Causal().dense(base.sizes)
    got = p.values(base.replace(mask=Causal(), mask_array=array, form="flag-and-mask"))
    if got is None:
        return "raises"
    for name, meaning in (
        ("intersect", array & causal),
        ("causal-ignored", array),
        ("mask-ignored", causal),
    ):
        if p.matches(got, base.replace(mask_array=meaning)):
            return name
    raise Deviation("election", "the causal flag with a mask is none of the known meanings")


def _causal_alone(p: Probe) -> str:
    base = p.inputs()
    if base.sizes.Lq != base.sizes.Lk:  # what the flag means there is another question
        base = base.select("k", slice(0, base.sizes.Lq))
    flagged = base.replace(mask=Causal(), form="flag")
    got = p.values(flagged)
    if got is None:
        return "raises"
    for name, inputs in (("hides", flagged), ("ignored", base)):
        if p.matches(got, inputs):
            return name
    raise Deviation("election", "the causal flag alone neither hides the future nor is ignored")


def _polarity(p: Probe) -> str:
    base = p.inputs()
    array = Boolean("qk").dense(base.sizes)
    array[:, 0], array[:, 1] = True, False
    got = p.values(base.replace(mask_array=array, form="raw"))
    if got is None:
        return "raises"
    for name, meaning in (("attends", array), ("hides", ~array)):
        if p.matches(got, base.replace(mask_array=meaning)):
            return name
    raise Deviation("election", "a boolean mask neither attends nor hides where it is True")


def _value_size(p: Probe) -> str:
    base = p.inputs()
    sizes = p.implementation.declared.limits_for(p.dtype).sizes_of_values or (5,)
    other = next((n for n in sizes if n != base.sizes.D), 0)
    if not other:
        raise NotApplicable("declares that values have the size of keys")
    value = np.resize(base.value, (*base.value.shape[:-1], other))
    got = p.values(base.replace(value=value), lacking=True)
    return "raises" if got is None else "accepted"


INTEGER_MASKS: dict[str, tuple[type[np.integer], int]] = {
    "int32 of 0 and 1": (np.int32, 1),
    "uint8 of 0 and 1": (np.uint8, 1),
    "int64 of 0 and 3": (np.int64, 3),
}
"""The dtype of a mask of integers, and the integer in place of True."""


def _integer_mask(p: Probe) -> str:
    masks = getattr(p.implementation, "binding", Binding()).masks
    if masks not in ("", "either", "boolean"):
        raise NotApplicable(f"claims masks={masks}, and integers are no such masks")
    first, *others = (_integers(p, *mask) for mask in INTEGER_MASKS.values())
    for name, answer in zip(list(INTEGER_MASKS)[1:], others, strict=True):
        if "raises" not in (first, answer) and first != answer:
            raise Deviation(
                "election",
                f"a mask of {next(iter(INTEGER_MASKS))} is {first}, and one of {name} is {answer}",
            )
    return first


def _integers(p: Probe, dtype: type[np.integer], one: int) -> str:
    """What a mask of integers is, with `one` in place of True."""
    base = p.inputs()
    mask = Boolean("bhqk").dense(base.sizes)
    numbers = mask.astype(dtype) * dtype(one)
    got = p.values(base.replace(mask_array=numbers, form="dense"))
    if got is None:
        return "raises"
    if p.matches(got, base.replace(mask_array=mask)):
        return "cast-to-bool"
    if p.matches(got, base.replace(bias=numbers.astype(np.float64))):
        return "added"
    raise Deviation(
        "election",
        f"a mask of {numbers.dtype} of 0 and {one} is neither refused, nor read as booleans, nor added",
    )


def _returned_weights(p: Probe) -> str:
    inputs = p.inputs(returned="head", rate=0.5, training=True)
    arrays = p.arrays(inputs)
    if arrays is None or "weights" not in arrays:
        raise Deviation("election", "no weights came back while dropout is on")
    weights = arrays["weights"]
    want = Oracle.forward(inputs, p.rounding).expected["weights"].reshape(*weights.shape)
    if (np.abs(weights - want.value) <= want.error).all():
        return "before-dropout"
    if (np.minimum(np.abs(weights - 2 * want.value), np.abs(weights)) <= 2 * want.error).all():
        return "after-dropout"
    raise Deviation("election", "the returned weights are those neither before nor after dropout")


PROBES: dict[str, Callable[[Probe], str]] = {
    **numbers.PROBES,
    **modes.PROBES,
    **caches.PROBES,
    "fully-masked-row": _fully_masked,
    "padded-sample": _padded_sample,
    "minus-inf-row": _minus_inf,
    "lowest-row": _lowest,
    "fully-masked-row-gradient": _gradient_of_empty_row,
    "padded-sample-gradient": _gradient_of_empty_row,
    "minus-inf-row-gradient": _gradient_of_minus_inf,
    "no-keys": _no_keys,
    "lse-of-empty-row": _lse_of_empty,
    "lse-gradient": _gradient_of_lse,
    "causal-alignment": _alignment,
    "causal-with-mask": _causal_with_mask,
    "causal-alone": _causal_alone,
    "mask-polarity": _polarity,
    "value-size": _value_size,
    "integer-mask": _integer_mask,
    "returned-weights": _returned_weights,
}
"""How each question is put to an implementation: the function names the answer that it gives."""
