"""Facts about a user's layer before it is judged: how it is made, and how it is called.

The layer is made in each way that its constructor may mean sizes, until the shapes of its variables fit.
Then it is called a few times. The shapes of the answers, and whether masked or later keys change them,
give the facts. No reference is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import and_
from typing import Any

import numpy as np

from attention_conformance.backends.binder import ends_in
from attention_conformance.backends.user.construct import Maker, row_of
from attention_conformance.backends.user.found import Reading, Variable, readings
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.masks import Causal, Mask, is_causal, part_features

UserLayer = Any
"""`backends.user.layer.UserLayer`, which imports this module."""

TIES: Mapping[str, str] = {
    "": "",
    "v=d o=d": "values have the size of keys",
    "d=x v=x o=x": "heads have the width of the input",
    "d=x y=x": "units and keys have the width of queries",
    "d=x y=x z=x v=x o=x": "everything has the width of queries",
}
"""Sizes that a constructor of one head cannot tell apart, as letters of axes, with a sentence."""


NO_MASK = "of no form that the suite knows"
"""The `mask_kind` of a layer that raises in every trial call with a mask."""

MASKS = ("booleans", "numbers 0 and 1", "numbers 0 and -inf, added to scores")
"""The possible `mask_kind` of other layers."""


@dataclass(frozen=True)
class Facts:
    """How a layer is made and called.

    - `read`: the names that its constructor reads from its config; `tie`: one of `TIES`
    - `joined_heads`: its constructor means D and Dv of all heads together (H D and H Dv)
    - `found`: the readings of its variables, as texts for the user
    - `squeezed`: it takes arrays without the axis that the option `squeezed` leaves out
    - `causal`: it hides later keys in every call
    - `weights`: the weights that it always returns, "head" or "average", or ""
    - `mask_axes`: 4 or 3; `mask_kind`: one of `MASKS`
    - `dtypes`: the dtypes that its variables have; all if empty
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
        """The unusual facts, as sentences for the user."""
        axes = "(B, Lq, Lk)" if self.mask_axes == 3 else "(B, 1, Lq, Lk)"
        usual = self.mask_axes == 4 and self.mask_kind == "booleans"
        return tuple(
            text
            for text, holds in (
                (f"its config reads {', '.join(self.read)}", self.read),
                ("sizes of heads are those of all heads together", self.joined_heads),
                (f"{TIES[self.tie]}: its constructor tells no more sizes", self.tie),
                ("always causal: only causal cases are asked", self.causal),
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
    def unasked(self) -> set[str]:
        """The features that every call of the layer has, also without an argument for them."""
        features = {"causal"} if self.causal else set()
        return features | ({"head": {"weights"}, "average": {"average"}}.get(self.weights, set()))

    def refusals(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """`reasons`, by lacking feature, with the changes that these facts require."""
        reasons = dict(reasons)
        for feature in self.unasked:
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
        """The reason why these facts exclude a case, or None."""
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
        """The case changed so that these facts allow it. Parts of the mask whose features `missing`
        refuses (with a reason) are left out. Raises ValueError if the operator has no such case."""
        parts = case.mask.parts if case.mask is not None else ()
        kept_parts = [p for p in parts if missing(part_features(p, case.form)) is None]
        if self.causal and not is_causal(case.mask):
            kept_parts = [Causal(), *kept_parts]
        if tuple(kept_parts) != parts:
            mask: Mask | None = reduce(and_, kept_parts) if kept_parts else None
            case = replace(case, mask=mask, form=case.form if kept_parts else "native")
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
    """All that is observed of a layer.

    - `call`: a callable with the signature of the layer's call
    - `switches`: the layer has a method `train`; `takes_parameters`: its parameters can be set
    - `unread`: the error of setting each set of parameters (see `UserLayer.loaded`)
    - `facts`: how it is made and called
    """

    call: Callable[..., Any]
    switches: bool
    takes_parameters: bool
    unread: Mapping[frozenset[str], str]
    facts: Facts


def with_tie(case: Case, tie: str) -> Case:
    """The case with sizes made equal as `tie`, one of `TIES`, says. Raises ValueError if the operator has
    no such case."""
    if not tie or case.widths is None:
        return case
    size = dict(case.letters)
    for pair in tie.split():
        size[pair[0]] = size[pair[2]]
    sizes = replace(case.sizes, D=size["d"], Dv=size["v"])
    widths = replace(case.widths, query=size["x"], key=size["y"], value=size["z"], output=size["o"])
    return replace(case, sizes=sizes, widths=widths)


def is_tied(case: Case, tie: str) -> bool:
    """True if the sizes of a case are equal as a tie says."""
    return all(case.letters[pair[0]] == case.letters[pair[2]] for pair in tie.split())


def ties_of(case: Case) -> Iterator[str]:
    """The ties that can be made in a case. Only a case of one head needs ties other than ""."""
    for tie in TIES if case.sizes.H == 1 else ("",):
        try:
            with_tie(case, tie)
        except ValueError:
            continue
        yield tie


def without_mask_in_f32(case: Case) -> Case:
    """The case without a mask, in float32."""
    return replace(case, mask=None, form="native", dtype=DTYPES["f32"])


def hypotheses(layer: UserLayer, case: Case) -> Iterator[tuple[Maker, Facts]]:
    """The ways to make a layer, each with its facts, the likeliest first. Reads the signature of its
    call."""
    maker, read = layer.maker, tuple[str, ...]()
    if maker.config:
        inputs = draw(without_mask_in_f32(case))
        settings = maker.settings(inputs)
        new_layer = layer.backend.placed_layer(partial(maker, inputs, settings), inputs.dtype)
        layer.call_with(ends_in(new_layer))
        with suppress(Exception):
            layer.variables(new_layer, inputs)  # the first call of some layers reads the config
        read = tuple(settings.read)
    names = maker.binder.taken | {*read}
    rows = (row_of(name, names) for name in names)
    meanings = (False, True) if any(row and row.joined_heads for row in rows) else (False,)
    for joined_heads in meanings:
        maker = Maker.of(maker.factory, layer.name, read, joined_heads)
        for tie in ties_of(without_mask_in_f32(case)):
            yield maker, Facts(read=read, joined_heads=joined_heads, tie=tie)


def fitting_layer(layer: UserLayer, case: Case) -> Any:
    """Make the layer by the first of `hypotheses` whose variables fit, and set `layer.maker`, `facts` and
    `readings`. If none fits, the first one makes it, with own parameters; its errors are raised."""
    ways = list(hypotheses(layer, case))
    for layer.maker, layer.facts in ways:
        inputs = draw(with_tie(without_mask_in_f32(case), layer.facts.tie))
        try:
            new_layer = layer.layer(inputs)
            layer.call_with(ends_in(new_layer))
            if hasattr(new_layer, "load_attention"):
                return new_layer
            layer.readings = readings_of(layer, new_layer, inputs)
        except Exception:
            continue
        if layer.readings or not inputs.parameters:
            return new_layer
    layer.maker, layer.facts = ways[0]
    new_layer = layer.layer(draw(without_mask_in_f32(case)))
    layer.call_with(ends_in(new_layer))
    return new_layer


def readings_of(layer: UserLayer, new_layer: Any, inputs: Inputs) -> tuple[Reading, ...]:
    """The readings of the variables of the made layer."""
    layer.variables(new_layer, inputs)
    variables = layer.backend.layer_variables(new_layer)
    shapes = {path: Variable(tuple(x.shape), order) for path, (x, order) in variables.items()}
    return readings(shapes, inputs.case)


def facts_of(layer: UserLayer, case: Case) -> Facts:
    """All facts of a layer, found by trial calls and set as `layer.facts`, which said how it is made."""
    layer.facts = replace(layer.facts, found=tuple(reading.text for reading in layer.readings))
    if layer.readings:
        layer.facts = replace(layer.facts, dtypes=dtypes_of(layer, case))
    probe = probe_case(layer, case)
    output, weights = answer_of(layer, draw(probe))
    if not has_output_shape(output, draw(probe), "output"):
        squeezed = fitted_or_none(replace(layer.facts, squeezed=True), probe)
        if squeezed is None:
            return layer.facts
        output, weights = answer_of(layer, draw(squeezed))
        if not has_output_shape(output, draw(squeezed), "output"):
            return layer.facts
        layer.facts, probe = replace(layer.facts, squeezed=True), squeezed
    may_be_causal = layer.count == 1 and not layer.takes("causal")
    layer.facts = replace(
        layer.facts,
        causal=may_be_causal and hides_later_keys(layer, draw(probe)),
        weights=next((n for n in ("head", "average") if are_weights_of(weights, probe, n)), ""),
    )
    if layer.takes("mask"):
        find_mask_form(layer, draw(probe))
    return layer.facts


def probe_case(layer: UserLayer, case: Case) -> Case:
    """The case of trial calls: without a mask, with the layer's tie, and as self-attention for a layer
    that takes one array."""
    case = with_tie(without_mask_in_f32(case), layer.facts.tie)
    if layer.count > 1:
        return case
    try:
        case_of_one_length = replace(case, sizes=replace(case.sizes, Lk=case.sizes.Lq))
        return case_of_one_length.with_options(self_attention=True)
    except ValueError:
        return case


def fitted_or_none(facts: Facts, case: Case) -> Case | None:
    """`Facts.fitted` of the case with its mask; None if the operator has no such case."""
    try:
        return facts.fitted(case, lambda features: None)
    except ValueError:
        return None


def answer_of(layer: UserLayer, inputs: Inputs) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Output and weights of a call; None for one that is no array, and for both if the call raises."""
    backend = layer.backend
    try:
        output, weights = layer.prepare(inputs)()
        arrays = [backend.to_numpy(x) if backend.is_array(x) else None for x in (output, weights)]
    except Exception:
        return None, None
    return arrays[0], arrays[1]


def has_output_shape(array: np.ndarray | None, inputs: Inputs, name: str) -> bool:
    """True for an array of the shape of the output `name`."""
    return array is not None and array.shape == inputs.output_shape(name)


def are_weights_of(weights: np.ndarray | None, case: Case, name: str) -> bool:
    """True if `weights` has the shape of the weights of every head (`name` "head"), or of their
    "average"."""
    try:
        return has_output_shape(weights, draw(case.with_options(returned=name)), "weights")
    except ValueError:
        return False


def with_changed_last_key(inputs: Inputs) -> Inputs:
    """The inputs with another last key and value; in self-attention the last query changes, too."""
    names = ("query", "key", "value") if inputs.self_attention else ("key", "value")
    arrays = {name: inputs.arrays[name].copy() for name in names}
    for array in arrays.values():
        array[:, -1] = -2 * array[:, -1]
    return inputs.replace(**arrays)


def rows_without_changed_query(output: np.ndarray | None, inputs: Inputs) -> np.ndarray | None:
    """The output without the row of the query that `with_changed_last_key` changes."""
    if output is None or not inputs.self_attention:
        return output
    return output[..., :-1, :]


def hides_later_keys(layer: UserLayer, inputs: Inputs) -> bool:
    """True if the first row of an answer without a mask does not depend on the last key."""
    if not (inputs.self_attention and inputs.operator.has_keys) or inputs.sizes.Lq < 2:
        return False
    first, second = (answer_of(layer, i)[0] for i in (inputs, with_changed_last_key(inputs)))
    if first is None or second is None:
        return False
    return equal_arrays(first[..., 0, :], second[..., 0, :])


def equal_arrays(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """True for two arrays of the same numbers."""
    return (
        first is not None and second is not None and np.array_equal(first, second, equal_nan=True)
    )


def find_mask_form(layer: UserLayer, inputs: Inputs) -> None:
    """Set `mask_axes` and `mask_kind` of the layer's facts to the form of masks in which a hidden key has
    no influence; else to the first form in which a call succeeds."""
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
    unknown = replace(facts_before, mask_kind=NO_MASK) if layer.readings else facts_before
    layer.facts = callable_facts[0] if callable_facts else unknown


def dtypes_of(layer: UserLayer, case: Case) -> tuple[str, ...]:
    """The claimed dtypes that the variables of a layer made for this dtype have; () if all, or none."""
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
