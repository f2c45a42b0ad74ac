"""Facts about a user's layer, before it is judged: how it is made, and how it is called.

The layer is made in each way that its constructor may mean, until the shapes of its variables fit. Then
it is called a few times, without a reference: facts are the shapes of answers, and whether masked or
later keys change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np

from attention_conformance.backends.binder import callable_with_signature
from attention_conformance.backends.user.construct import (
    TIES,
    Maker,
    is_tied,
    row_of,
    ties_of,
    with_tie,
)
from attention_conformance.backends.user.found import Assignment, Variable, assignments_for
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.masks import Causal, Mask, is_causal, part_features

UserLayer = Any
"""`backends.user.layer.UserLayer`, which imports this module."""

NO_MASK = "of no form that the suite knows"
"""The `mask_kind` of a layer that raises in all trial calls with a mask."""

MASKS = ("booleans", "numbers 0 and 1", "numbers 0 and -inf, added to scores")
"""The values of `mask_kind` of other layers."""


@dataclass(frozen=True)
class Facts:
    """How a layer is made and called.

    - `read`: the names that its constructor reads from its config; `tie`: one of `TIES`
    - `joined_heads`: its constructor gets H D and H Dv in place of D and Dv
    - `found`: the assignments of parameters to its variables, as texts for the user
    - `squeezed`: its arrays lack the axis that the option `squeezed` leaves out
    - `causal`: it is causal in every call
    - `weights`: the weights that it always returns, "head" or "average"; "" for none
    - `mask_axes`: 4 or 3; `mask_kind`: one of `MASKS`, or `NO_MASK`
    - `dtypes`: the dtypes that its variables can have; () for all
    """

    read: tuple[str, ...] = ()
    joined_heads: bool = False
    tie: str = ""
    found: tuple[str, ...] = ()
    squeezed: bool = False
    causal: bool = False
    weights: str = ""
    mask_axes: int = 4
    mask_kind: str = "booleans"
    dtypes: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        """Sentences for the user about unusual facts."""
        axes = "(B, Lq, Lk)" if self.mask_axes == 3 else "(B, 1, Lq, Lk)"
        usual = self.mask_axes == 4 and self.mask_kind == "booleans"
        return tuple(
            text
            for text, holds in (
                (f"its config reads {', '.join(self.read)}", self.read),
                ("sizes of heads are those of all heads together", self.joined_heads),
                (f"{TIES[self.tie]}: its constructor tells no more sizes", self.tie),
                ("always causal: only causal cases are tested", self.causal),
                ("takes one query or one sample, without their axis", self.squeezed),
                (f"masks are {self.mask_kind} {axes}", not usual and self.mask_kind != NO_MASK),
                (
                    f"its masks are {NO_MASK}, and are never passed: calls with {', '.join(MASKS)} raise",
                    self.mask_kind == NO_MASK,
                ),
                (f"its parameters are {', '.join(self.dtypes)} alone", self.dtypes),
            )
            if holds
        )

    @property
    def always_present(self) -> set[str]:
        """The features that every call of the layer has, without an argument for them."""
        features = {"causal"} if self.causal else set()
        return features | ({"head": {"weights"}, "average": {"average"}}.get(self.weights, set()))

    def refusals(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """Returns `reasons`, by lacking feature, changed as these facts require."""
        reasons = dict(reasons)
        for feature in self.always_present:
            reasons.pop(feature, None)
        if self.causal:
            reasons["native-causal"] = "the layer is always causal, and has no flag"
        if self.mask_kind != MASKS[0]:
            reasons["raw-mask"] = f"the layer's masks are {self.mask_kind}"
        if self.squeezed:
            reasons.pop("squeezed", None)
            reasons["batch"] = "the layer takes arrays without this axis"
        return reasons

    def refusal(self, case: Case) -> str | None:
        """Returns the reason why these facts exclude a case, or None."""
        if self.causal and not is_causal(case.mask):
            return "the layer is always causal"
        if self.squeezed and not case.option("squeezed"):
            return "the layer takes one query or one sample, without their axis"
        if self.mask_axes == 3 and case.mask is not None and case.sizes.H != 1:
            shape = case.mask.dense(case.sizes).shape
            if len(shape) == 4 and shape[1] != 1:
                return "the layer takes one mask for all heads"
        if self.tie and not is_tied(case, self.tie):
            return f"{TIES[self.tie]}: the constructor tells no more sizes"
        return None

    def fitted(self, case: Case, missing: Callable[[list[str]], str | None]) -> Case:
        """Returns the case changed so that these facts allow it. Parts of the mask whose features
        `missing` refuses are left out. Raises ValueError if the operator has no such case."""
        parts = case.mask.parts if case.mask is not None else ()
        supported_parts = [p for p in parts if missing(part_features(p, case.form)) is None]
        if self.causal and not is_causal(case.mask):
            supported_parts = [Causal(), *supported_parts]
        if tuple(supported_parts) != parts:
            mask: Mask | None = reduce(and_, supported_parts) if supported_parts else None
            case = replace(case, mask=mask, form=case.form if supported_parts else "native")
        if self.found and case.option("without_projections"):
            case = case.with_options(without_projections=False, vector=False)
        case = with_tie(case, self.tie)
        if self.squeezed and not case.option("squeezed"):
            letter = case.operator.squeezed_axis
            sizes = replace(case.sizes, **{"Lq" if letter == "q" else "B": 1})
            changed = {"self_attention": False} if letter == "q" else {}
            case = replace(replace(case.with_options(**changed), sizes=sizes), options=case.options)
            case = case.with_options(**changed, squeezed=True)
        return case


@dataclass(frozen=True)
class ObservedLayer:
    """All observations of a layer.

    - `call`: a callable with the signature of the layer's call
    - `switches`: the layer has a method `train`; `takes_parameters`: its parameters can be set
    - `unread`: see `UserLayer.errors_by_parameters`
    - `facts`: how it is made and called
    """

    call: Callable[..., Any]
    switches: bool
    takes_parameters: bool
    unread: Mapping[frozenset[str], str]
    facts: Facts


def without_mask_in_f32(case: Case) -> Case:
    """Returns the case without a mask, in float32."""
    return replace(case, mask=None, form="native", dtype=DTYPES["f32"])


def config_names_read(layer: UserLayer, case: Case) -> tuple[str, ...]:
    """Returns the names that a trial layer reads of its config; () if the constructor takes no config.
    Sets `layer.called` to the call of the trial layer."""
    maker = layer.maker
    if not maker.config:
        return ()
    inputs = draw(without_mask_in_f32(case))
    settings = maker.settings(inputs)
    new_layer = layer.backend.placed_layer(partial(maker, inputs, settings), inputs.dtype)
    layer.call_with(callable_with_signature(new_layer))
    with suppress(Exception):
        layer.variables(new_layer, inputs)  # the first call of some layers reads the config
    return tuple(settings.names_read)


def ways_to_make(layer: UserLayer, case: Case) -> Iterator[tuple[Maker, Facts]]:
    """Yields the ways to make a layer, each a maker and the facts that it assumes, the likeliest first.

    A way says whether the constructor's sizes are those of one head or of all heads together
    (`joined_heads`), and which sizes are equal (`tie`, see `TIES`)."""
    maker, config_names = layer.maker, config_names_read(layer, case)
    names = maker.binder.taken | {*config_names}
    rows = (row_of(name, names) for name in names)
    joined_options = (False, True) if any(row and row.joined_heads for row in rows) else (False,)
    for joined_heads in joined_options:
        maker = Maker.of(maker.factory, layer.name, config_names, joined_heads)
        for tie in ties_of(without_mask_in_f32(case)):
            yield maker, Facts(read=config_names, joined_heads=joined_heads, tie=tie)


def fitting_layer(layer: UserLayer, case: Case) -> Any:
    """Returns the layer made in the first of `ways_to_make` in which its variables fit. If none does,
    the first way makes it, and its errors are raised. Sets `layer.maker`, `facts` and `assignments`."""
    ways = list(ways_to_make(layer, case))
    for layer.maker, layer.facts in ways:
        inputs = draw(with_tie(without_mask_in_f32(case), layer.facts.tie))
        try:
            new_layer = layer.layer(inputs)
            layer.call_with(callable_with_signature(new_layer))
            if hasattr(new_layer, "load_attention"):
                return new_layer
            layer.assignments = assignments_of(layer, new_layer, inputs)
        except Exception:
            continue
        if layer.assignments or not inputs.parameters:
            return new_layer
    layer.maker, layer.facts = ways[0]
    new_layer = layer.layer(draw(without_mask_in_f32(case)))
    layer.call_with(callable_with_signature(new_layer))
    return new_layer


def assignments_of(layer: UserLayer, new_layer: Any, inputs: Inputs) -> tuple[Assignment, ...]:
    """Returns the assignments of the case's parameters to the variables of the made layer."""
    layer.variables(new_layer, inputs)
    variables = layer.backend.layer_variables(new_layer)
    shapes = {path: Variable(tuple(x.shape), order) for path, (x, order) in variables.items()}
    return assignments_for(shapes, inputs.case)


def facts_of(layer: UserLayer, case: Case) -> Facts:
    """Returns all facts of a layer, found by trial calls. Also sets them as `layer.facts`, which must
    have the facts of how it is made."""
    layer.facts = replace(layer.facts, found=tuple(reading.text for reading in layer.assignments))
    if layer.assignments:
        layer.facts = replace(layer.facts, dtypes=dtypes_of(layer, case))
    probe = probe_case(layer, case)
    output, weights = answer_of(layer, draw(probe))
    if not has_output_shape(output, draw(probe), "output"):
        squeezed = fitted_case(replace(layer.facts, squeezed=True), probe)
        if squeezed is None:
            return layer.facts
        output, weights = answer_of(layer, draw(squeezed))
        if not has_output_shape(output, draw(squeezed), "output"):
            return layer.facts
        layer.facts, probe = replace(layer.facts, squeezed=True), squeezed
    may_be_causal = layer.array_count == 1 and not layer.takes("causal")
    layer.facts = replace(
        layer.facts,
        causal=may_be_causal and hides_later_keys(layer, draw(probe)),
        weights=next((n for n in ("head", "average") if are_weights_of(weights, probe, n)), ""),
    )
    if layer.takes("mask"):
        find_mask_form(layer, draw(probe))
    return layer.facts


def probe_case(layer: UserLayer, case: Case) -> Case:
    """Returns the case for trial calls: float32, without a mask, with the sizes of `layer.facts.tie`
    (`TIES`). A layer that takes one array gets self-attention with Lk = Lq, if the operator has such a
    case."""
    case = with_tie(without_mask_in_f32(case), layer.facts.tie)
    if layer.array_count > 1:
        return case
    try:
        case_of_one_length = replace(case, sizes=replace(case.sizes, Lk=case.sizes.Lq))
        return case_of_one_length.with_options(self_attention=True)
    except ValueError:
        return case


def fitted_case(facts: Facts, case: Case) -> Case | None:
    """Returns `Facts.fitted` of the case with all parts of its mask; None if the operator has no such
    case."""
    try:
        return facts.fitted(case, lambda features: None)
    except ValueError:
        return None


def answer_of(layer: UserLayer, inputs: Inputs) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Returns (output, weights) of a call, None for what is no array. Both are None if the call
    raises."""
    backend = layer.backend
    try:
        output, weights = layer.prepare(inputs)()
        arrays = [backend.to_numpy(x) if backend.is_array(x) else None for x in (output, weights)]
    except Exception:
        return None, None
    return arrays[0], arrays[1]


def has_output_shape(array: np.ndarray | None, inputs: Inputs, name: str) -> bool:
    """True for an array with the shape of the output `name`."""
    return array is not None and array.shape == inputs.output_shape(name)


def are_weights_of(weights: np.ndarray | None, case: Case, name: str) -> bool:
    """True if `weights` has the shape of the weights of every head (`name` "head"), or of their mean
    ("average")."""
    try:
        return has_output_shape(weights, draw(case.with_options(returned=name)), "weights")
    except ValueError:
        return False


def with_changed_last_key(inputs: Inputs) -> Inputs:
    """Returns the inputs with another last key and value. In self-attention also the last query
    changes."""
    names = ("query", "key", "value") if inputs.self_attention else ("key", "value")
    arrays = {name: inputs.arrays[name].copy() for name in names}
    for array in arrays.values():
        array[:, -1] = -2 * array[:, -1]
    return inputs.replace(**arrays)


def rows_without_changed_query(output: np.ndarray | None, inputs: Inputs) -> np.ndarray | None:
    """Returns the output without the row of the query that `with_changed_last_key` changes."""
    if output is None or not inputs.self_attention:
        return output
    return output[..., :-1, :]


def hides_later_keys(layer: UserLayer, inputs: Inputs) -> bool:
    """True if the first row of the answer without a mask does not depend on the last key."""
    if not (inputs.self_attention and inputs.operator.has_keys) or inputs.sizes.Lq < 2:
        return False
    first, second = (answer_of(layer, i)[0] for i in (inputs, with_changed_last_key(inputs)))
    if first is None or second is None:
        return False
    return equal_arrays(first[..., 0, :], second[..., 0, :])


def equal_arrays(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """True for two arrays of equal numbers; False if one is None."""
    return (
        first is not None and second is not None and np.array_equal(first, second, equal_nan=True)
    )


def find_mask_form(layer: UserLayer, inputs: Inputs) -> None:
    """Set `mask_axes` and `mask_kind` of the layer's facts to the first form of masks in which a masked
    key has no influence, or else to the first in which a call succeeds."""
    s = inputs.sizes
    mask = np.ones((s.B, 1, s.Lq, s.Lk), bool)
    mask[..., -1] = False
    inputs = inputs.with_dense(mask_array=mask)
    changed_inputs = with_changed_last_key(inputs)
    facts_before, callable_facts = layer.facts, list[Facts]()
    for axes in (4, 3):
        for kind in MASKS:
            layer.facts = replace(facts_before, mask_axes=axes, mask_kind=kind)
            first, second = (answer_of(layer, i)[0] for i in (inputs, changed_inputs))
            if not has_output_shape(first, inputs, "output") or second is None:
                continue
            rows = [rows_without_changed_query(output, inputs) for output in (first, second)]
            if equal_arrays(*rows):
                return
            callable_facts.append(layer.facts)
    unknown = replace(facts_before, mask_kind=NO_MASK) if layer.assignments else facts_before
    layer.facts = callable_facts[0] if callable_facts else unknown


def dtypes_of(layer: UserLayer, case: Case) -> tuple[str, ...]:
    """Returns the claimed dtypes in which a layer has variables of the dtype; () if these are all, or
    none."""
    claimed, fitting = layer.claims.dtypes, list[str]()
    for name in claimed:
        inputs = draw(replace(probe_case(layer, case), dtype=DTYPES[name]))
        try:
            new_layer = layer.layer(inputs)
            variables = layer.variables(new_layer, inputs).values()
        except Exception:
            continue
        long = DTYPES[name].long_name
        if all(str(getattr(v.dtype, "name", v.dtype)).endswith(long) for v in variables):
            fitting.append(name)
    return () if len(fitting) in (0, len(claimed)) else tuple(fitting)
