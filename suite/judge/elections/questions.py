"""Election questions: a function for each, which probes an implementation and returns the name of its
answer. Questions about numbers, modes and caches are in the modules `numbers`, `modes` and `caches`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attention_conformance.suite.judge.elections import caches, modes, numbers
from attention_conformance.suite.judge.elections.lse import AGREES, value_name
from attention_conformance.suite.judge.elections.probe import (
    Probe,
    empty_row,
    is_near,
    with_all_keys,
)
from attention_conformance.suite.judge.oracle import Oracle
from attention_conformance.suite.judge.verdict import NotApplicable, WrongAnswer
from attention_conformance.suite.spec.binding import Binding
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Boolean, Causal


def _with_empty_row(inputs: Inputs) -> Inputs:
    """Returns the inputs with a boolean mask that fully masks one row."""
    mask = np.ones((inputs.sizes.Lq, inputs.sizes.Lk), bool)
    mask[empty_row(inputs)] = False
    return inputs.replace(mask_array=mask, form="dense")


def _probe_fully_masked_row(p: Probe) -> str:
    inputs = _with_empty_row(p.inputs())
    return p.name_of_rows(p.values(inputs), inputs)


def _probe_lse_of_empty_row(p: Probe) -> str:
    inputs = _with_empty_row(p.inputs(lse=True))
    arrays = p.arrays(inputs)
    mask_answer = _lse_answer(p, inputs, arrays)
    biased_inputs = inputs.replace(mask_array=None, form="native", bias=_minus_inf_bias(inputs))
    if mask_answer == "raises" or p.implementation.refuses(biased_inputs) is not None:
        return mask_answer
    arrays = p.arrays(biased_inputs)
    bias_answer = _lse_answer(p, biased_inputs, arrays)
    is_nan = arrays and np.isnan(arrays["output"][:, :, empty_row(biased_inputs)]).all()
    if bias_answer not in (mask_answer, *AGREES["nan" if is_nan else "zeros"]):
        raise WrongAnswer(
            "election",
            f"the log-sum-exp of rows that a boolean mask hides is {mask_answer}, and of rows that a "
            f"bias of -inf hides {bias_answer}",
        )
    return mask_answer


def _lse_answer(p: Probe, inputs: Inputs, arrays: dict[str, np.ndarray] | None) -> str:
    """Returns the name of the log-sum-exp of the fully masked rows in the outputs `arrays` for
    `inputs`."""
    if arrays is None:
        return "raises"
    got = arrays["lse"][:, :, empty_row(inputs)]
    name = value_name(got)
    if name:
        return name
    all_keys_lse = Oracle.forward(with_all_keys(inputs), p.rounding).expected["lse"]
    if is_near(arrays["lse"], all_keys_lse, inputs.fully_masked_rows):
        return "all-keys"
    raise WrongAnswer("election", f"the log-sum-exp of rows without keys: {got.ravel()[:3]}")


def _probe_lse_gradient(p: Probe) -> str:
    inputs = p.inputs(lse=True)
    cotangent = p.cotangent(inputs)[..., 0]
    got = p.lse_gradients(inputs, cotangent)
    if got is None:
        return "raises"
    if not any(gradient.any() for gradient in got.values()):
        return "nothing"
    if p.matches_gradients(got, inputs, cotangent, "zeros", "lse"):
        return "flows"
    raise WrongAnswer("election", "the log-sum-exp has gradients, and they are wrong")


def _probe_padded_sample(p: Probe) -> str:
    inputs = p.inputs("padempty")
    return p.name_of_rows(p.values(inputs), inputs)


def _minus_inf_bias(inputs: Inputs) -> np.ndarray:
    """Returns a bias of zeros with -inf in all of one row."""
    s = inputs.sizes
    bias = np.zeros((s.B, s.H, s.Lq, s.Lk))
    bias[:, :, empty_row(inputs)] = -np.inf
    return bias


def _probe_minus_inf_row(p: Probe) -> str:
    base = p.inputs()
    inputs = base.replace(bias=_minus_inf_bias(base))
    return p.name_of_rows(p.values(inputs), inputs)


def _probe_lowest_row(p: Probe) -> str:
    base = p.inputs()
    bias = _minus_inf_bias(base)
    inputs = base.replace(bias=np.where(np.isneginf(bias), -float(p.dtype.max), bias))
    got = p.values(inputs)
    try:
        return p.name_of_rows(got, base.replace(bias=bias))
    except WrongAnswer:
        if got is None or p.operator.is_layer or not _is_merge_of_means(p, inputs):
            raise
        return "weighted"


def _is_merge_of_means(p: Probe, inputs: Inputs) -> bool:
    """True if the output of the row with lowest scores may come from a merge of parts of the keys by
    log-sum-exp.

    The log-sum-exp of every part absorbs the logarithm of the number of its keys. So each part is the
    mean of its values, and all parts weigh the same. Parts are added if their weights are exp(lse -
    total), whose total absorbs, too. Parts are averaged if the weights are normalised, all at once or two
    at a time. The weights of the keys then sum to a whole number, and each of them is at least 2^(1 -
    Lk): the first weight if keys are merged one after another.

    The value of key j is the unit vector j mod Dv, so that component j mod Dv of the output is its
    weight.
    """
    s = inputs.sizes
    unit_vectors = np.eye(s.Dv)[np.arange(s.Lk) % s.Dv]
    got = p.values(inputs.replace(value=np.broadcast_to(unit_vectors, inputs.value.shape)))
    if got is None:
        return False
    weights, keys_per_component = got[:, :, empty_row(inputs)], unit_vectors.sum(0)
    total = weights.sum(-1)
    slack = 16 * max(p.dtype.unit_roundoff, DTYPES["f32"].unit_roundoff)
    return bool(
        (weights >= keys_per_component * 2.0 ** (1 - s.Lk) * (1 - slack)).all()
        and (weights <= keys_per_component * (1 + slack)).all()
        and (np.abs(total - np.maximum(np.round(total), 1)) <= slack * total).all()
    )


def _probe_minus_inf_row_gradient(p: Probe) -> str:
    base = p.gradient_inputs()
    return _gradient_answer(p, base.replace(bias=_minus_inf_bias(base)))


def _probe_empty_row_gradient(p: Probe) -> str:
    # Sizes that other checks differentiate, too: some frameworks compile for every size.
    inputs = p.gradient_inputs()
    return _gradient_answer(p, inputs if inputs.has_empty_rows else _with_empty_row(inputs))


def _gradient_answer(p: Probe, inputs: Inputs) -> str:
    """Returns the part of the call that the cotangent of the fully masked rows reaches."""
    cotangent = p.cotangent(inputs)
    got = p.gradients(inputs, cotangent)
    if got is None:
        return "raises"
    if any(np.isnan(gradient).any() for gradient in got.values()):
        return "nan"
    for name, mode in (("nothing", "zeros"), ("values", "uniform"), ("scores", "scores")):
        if p.matches_gradients(got, inputs, cotangent, mode):
            return name
    if p.matches_gradients(got, with_all_keys(inputs), cotangent, "zeros", may_absorb=True):
        return "scores"
    raise WrongAnswer(
        "election",
        "the cotangent of fully masked rows goes neither nowhere, nor to the values, nor through the "
        "scores, and is not NaN",
    )


def _probe_no_keys(p: Probe) -> str:
    got = p.values(p.inputs().select("k", slice(0, 0)), may_lack=True)
    if got is None:
        return "raises"
    if np.isnan(got).all():
        return "nan"
    if (got == 0).all():
        return "zeros"
    raise WrongAnswer(
        "election", f"an answer without keys is neither zeros nor NaN: {got.ravel()[:3]}"
    )


def _probe_causal_alignment(p: Probe) -> str:
    flag_inputs = p.cross_inputs(mask=Causal())
    if p.operator.is_layer:
        reason = p.implementation.missing(["causal-alone"])
        if reason is not None:
            raise NotApplicable(reason)
        if _probe_causal_alone(p) != "hides":
            if _probe_causal_with_mask(p) != "intersect":
                raise NotApplicable("the causal flag counts neither alone nor beside a mask")
            all_true = np.ones((flag_inputs.sizes.Lq, flag_inputs.sizes.Lk), bool)
            flag_inputs = flag_inputs.replace(mask_array=all_true, form="flag-and-mask")
    got = p.values(flag_inputs)
    if got is None:
        return "raises"
    for name, bottom_right in (("top-left", False), ("bottom-right", True)):
        if p.matches(got, p.cross_inputs(mask=Causal(bottom_right))):
            return name
    raise WrongAnswer("election", "the causal flag gives neither top-left nor bottom-right")


def _probe_causal_with_mask(p: Probe) -> str:
    base = p.inputs()
    if base.sizes.Lq != base.sizes.Lk:  # `causal-alignment` asks about those
        base = base.select("k", slice(0, base.sizes.Lq))
    # Every row attends key 0, so that no meaning of the flag masks a row fully.
    mask = Boolean("b1qk").dense(base.sizes) | (np.arange(base.sizes.Lk) == 0)
    causal_mask = Causal().dense(base.sizes)
    got = p.values(base.replace(mask=Causal(), mask_array=mask, form="flag-and-mask"))
    if got is None:
        return "raises"
    for name, pairs in (
        ("intersect", mask & causal_mask),
        ("causal-ignored", mask),
        ("mask-ignored", causal_mask),
    ):
        if p.matches(got, base.replace(mask_array=pairs)):
            return name
    raise WrongAnswer("election", "the causal flag with a mask is none of the known meanings")


def _probe_causal_alone(p: Probe) -> str:
    base = p.inputs()
    if base.sizes.Lq != base.sizes.Lk:  # `causal-alignment` asks about those
        base = base.select("k", slice(0, base.sizes.Lq))
    flag_inputs = base.replace(mask=Causal(), form="flag")
    got = p.values(flag_inputs)
    if got is None:
        return "raises"
    for name, inputs in (("hides", flag_inputs), ("ignored", base)):
        if p.matches(got, inputs):
            return name
    raise WrongAnswer("election", "the causal flag alone neither hides the future nor is ignored")


def _probe_mask_polarity(p: Probe) -> str:
    base = p.inputs()
    mask = Boolean("qk").dense(base.sizes)
    mask[:, 0], mask[:, 1] = True, False
    got = p.values(base.replace(mask_array=mask, form="raw"))
    if got is None:
        return "raises"
    for name, pairs in (("attends", mask), ("hides", ~mask)):
        if p.matches(got, base.replace(mask_array=pairs)):
            return name
    raise WrongAnswer("election", "a boolean mask neither attends nor hides where it is True")


def _probe_value_size(p: Probe) -> str:
    base = p.inputs()
    sizes = p.implementation.declared.limits_for(p.dtype).sizes_of_values or (5,)
    size = next((n for n in sizes if n != base.sizes.D), 0)
    if not size:
        raise NotApplicable("declares that values have the size of keys")
    value = np.resize(base.value, (*base.value.shape[:-1], size))
    got = p.values(base.replace(value=value), may_lack=True)
    return "raises" if got is None else "accepted"


INTEGER_MASKS: dict[str, tuple[type[np.integer], int]] = {
    "int32 of 0 and 1": (np.int32, 1),
    "uint8 of 0 and 1": (np.uint8, 1),
    "int64 of 0 and 3": (np.int64, 3),
}
"""The dtype of a mask of integers, and the integer in place of True."""


def _probe_integer_mask(p: Probe) -> str:
    masks = getattr(p.implementation, "binding", Binding()).masks
    if masks not in ("", "either", "boolean"):
        raise NotApplicable(f"claims masks={masks}, and integers are no such masks")
    answers = {name: _integer_mask_answer(p, *entry) for name, entry in INTEGER_MASKS.items()}
    first_name, first_answer = next(iter(answers.items()))
    for name, answer in answers.items():
        if "raises" not in (first_answer, answer) and first_answer != answer:
            raise WrongAnswer(
                "election",
                f"a mask of {first_name} is {first_answer}, and one of {name} is {answer}",
            )
    return first_answer


def _integer_mask_answer(p: Probe, dtype: type[np.integer], true_value: int) -> str:
    """Returns the answer for a mask of integers of a dtype, with `true_value` in place of True."""
    base = p.inputs()
    mask = Boolean("bhqk").dense(base.sizes)
    integers = mask.astype(dtype) * dtype(true_value)
    got = p.values(base.replace(mask_array=integers, form="dense"))
    if got is None:
        return "raises"
    if p.matches(got, base.replace(mask_array=mask)):
        return "cast-to-bool"
    if p.matches(got, base.replace(bias=integers.astype(np.float64))):
        return "added"
    raise WrongAnswer(
        "election",
        f"a mask of {integers.dtype} of 0 and {true_value} is neither refused, nor read as booleans, "
        "nor added",
    )


def _probe_returned_weights(p: Probe) -> str:
    inputs = p.inputs(returned="head", rate=0.5, training=True)
    arrays = p.arrays(inputs)
    if arrays is None or "weights" not in arrays:
        raise WrongAnswer("election", "no weights came back while dropout is on")
    weights = arrays["weights"]
    want = Oracle.forward(inputs, p.rounding).expected["weights"].reshape(*weights.shape)
    if (np.abs(weights - want.value) <= want.error).all():
        return "before-dropout"
    if (np.minimum(np.abs(weights - 2 * want.value), np.abs(weights)) <= 2 * want.error).all():
        return "after-dropout"
    raise WrongAnswer("election", "the returned weights are those neither before nor after dropout")


PROBES: dict[str, Callable[[Probe], str]] = {
    **numbers.PROBES,
    **modes.PROBES,
    **caches.PROBES,
    "fully-masked-row": _probe_fully_masked_row,
    "padded-sample": _probe_padded_sample,
    "minus-inf-row": _probe_minus_inf_row,
    "lowest-row": _probe_lowest_row,
    "fully-masked-row-gradient": _probe_empty_row_gradient,
    "padded-sample-gradient": _probe_empty_row_gradient,
    "minus-inf-row-gradient": _probe_minus_inf_row_gradient,
    "no-keys": _probe_no_keys,
    "lse-of-empty-row": _probe_lse_of_empty_row,
    "lse-gradient": _probe_lse_gradient,
    "causal-alignment": _probe_causal_alignment,
    "causal-with-mask": _probe_causal_with_mask,
    "causal-alone": _probe_causal_alone,
    "mask-polarity": _probe_mask_polarity,
    "value-size": _probe_value_size,
    "integer-mask": _probe_integer_mask,
    "returned-weights": _probe_returned_weights,
}
"""The probe of each question: it returns the name of the implementation's answer."""
