"""What a person's layer shows before it is judged: how it is made, and how it is called.

A class is made in the readings of `sizes` that its constructor may have, until its variables fit. Then it
is called a few times. No reference is needed: shapes tell, and what an answer depends on.
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
"""The masks of a layer that raises in every trial call with one."""

MASKS = ("booleans", "numbers 0 and 1", "numbers 0 and -inf, added to scores")
"""How a layer may take masks."""


@dataclass(frozen=True)
class Facts:
    """How a layer is made and called.

    - `read`: the names that its config reads; `whole`: see `Maker`; `tie`: one of `TIES`
    - `found`: the ways to read its variables, as texts
    - `squeezed`: it takes arrays without the axis that the option `squeezed` leaves out
    - `causal`: it hides later keys in every call
    - `weights`: the weights that it always returns, "head" or "average", or ""
    - `mask_axes`: 4 or 3; `mask_kind`: one of `MASKS`
    - `dtypes`: the dtypes that its variables have; all if empty
    """

    read: tuple[str, ...] = ()
    whole: bool = False
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
        """Remarks for the user."""
        axes = "(B, Lq, Lk)" if self.mask_axes == 3 else "(B, 1, Lq, Lk)"
        usual = self.mask_axes == 4 and self.mask_kind == "booleans"
        return tuple(
            text
            for text, holds in (
                (f"its config reads {', '.join(self.read)}", self.read),
                ("sizes of heads are those of all heads together", self.whole),
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
        """The features that the layer has without being asked for them."""
        features = {"causal"} if self.causal else set()
        return features | ({"head": {"weights"}, "average": {"average"}}.get(self.weights, set()))

    def refusals(self, reasons: Mapping[str, str]) -> dict[str, str]:
        """The reasons why features are lacking, as this layer is called."""
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
        """The reason why a case has another form than the layer, or None."""
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
        """The case in this form: without the parts of the mask that need `missing` features, and with
        projections. Raises ValueError if the operator has no such case."""
        parts = case.mask.parts if case.mask is not None else ()
        left = [p for p in parts if missing(part_features(p, case.form)) is None]
        if self.causal and not is_causal(case.mask):
            left = [Causal(), *left]
        if tuple(left) != parts:
            mask: Mask | None = reduce(and_, left) if left else None
            case = replace(case, mask=mask, form=case.form if left else "native")
        if self.found and case.option("without_projections"):
            case = case.with_options(without_projections=False, vector=False)
        case = tied(case, self.tie)
        if self.squeezed and not case.option("squeezed"):
            letter = case.operator.squeezed_axis
            sizes = replace(case.sizes, **{"Lq" if letter == "q" else "B": 1})
            own = {"self_attention": False} if letter == "q" else {}
            case = replace(replace(case.with_options(**own), sizes=sizes), options=case.options)
            case = case.with_options(**own, squeezed=True)
        return case


@dataclass(frozen=True)
class ObservedLayer:
    """What a layer shows.

    - `call`: a callable with the signature of the layer's call
    - `switches`: True if it has a method `train`; `takes_parameters`: its parameters can be set
    - `unread`: the parameters that cannot be set (see `UserLayer.loaded`)
    - `facts`: how it is made and called
    """

    call: Callable[..., Any]
    switches: bool
    takes_parameters: bool
    unread: Mapping[frozenset[str], str]
    facts: Facts


def tied(case: Case, tie: str) -> Case:
    """The case with equal sizes as one of `TIES` says. Raises ValueError if the operator has none."""
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
    """The ties that a case can have; of several heads, features say the same."""
    for tie in TIES if case.sizes.H == 1 else ("",):
        try:
            tied(case, tie)
        except ValueError:
            continue
        yield tie


def plain(case: Case) -> Case:
    """The case without a mask, in float32."""
    return replace(case, mask=None, form="native", dtype=DTYPES["f32"])


def hypotheses(layer: UserLayer, case: Case) -> Iterator[tuple[Maker, Facts]]:
    """The makers of a layer and their facts, the likeliest first."""
    maker, read = layer.maker, tuple[str, ...]()
    if maker.config:
        inputs = draw(plain(case))
        settings = maker.settings(inputs)
        made = layer.backend.memory.made(partial(maker, inputs, settings), inputs.dtype)
        layer.call_with(ends_in(made))
        with suppress(Exception):
            layer.variables(made, inputs)  # the first call of some layers reads the config
        read = tuple(settings.read)
    names = maker.binder.taken | {*read}
    rows = (row_of(name, names) for name in names)
    ways = (False, True) if any(row and row.whole for row in rows) else (False,)
    for whole in ways:
        made = Maker.of(maker.factory, layer.name, read, whole)
        for tie in ties_of(plain(case)):
            yield made, Facts(read=read, whole=whole, tie=tie)


def settled(layer: UserLayer, case: Case) -> Any:
    """A layer that is made in the first way in which its variables fit, with `readings` set; else in the
    first way, with its own parameters. Raises what the constructor raises in the first way."""
    tried = list(hypotheses(layer, case))
    for layer.maker, layer.facts in tried:
        inputs = draw(tied(plain(case), layer.facts.tie))
        try:
            made = layer.layer(inputs)
            layer.call_with(ends_in(made))
            if hasattr(made, "load_attention"):
                return made
            layer.readings = readings_of(layer, made, inputs)
        except Exception:
            continue
        if layer.readings or not inputs.parameters:
            return made
    layer.maker, layer.facts = tried[0]
    made = layer.layer(draw(plain(case)))
    layer.call_with(ends_in(made))
    return made


def readings_of(layer: UserLayer, made: Any, inputs: Inputs) -> tuple[Reading, ...]:
    """The ways to read a layer's variables."""
    layer.variables(made, inputs)
    variables = layer.backend.memory.variables(made)
    shapes = {path: Variable(tuple(one.shape), order) for path, (one, order) in variables.items()}
    return readings(shapes, inputs.case)


def facts_of(layer: UserLayer, case: Case) -> Facts:
    """The facts of a layer whose `facts` say how it is made."""
    layer.facts = replace(layer.facts, found=tuple(one.text for one in layer.readings))
    if layer.readings:
        layer.facts = replace(layer.facts, dtypes=dtypes_of(layer, case))
    probe = probed(layer, case)
    output, weights = answered(layer, draw(probe))
    if not fits(output, draw(probe), "output"):
        squeezed = in_form(replace(layer.facts, squeezed=True), probe)
        if squeezed is None:
            return layer.facts
        output, weights = answered(layer, draw(squeezed))
        if not fits(output, draw(squeezed), "output"):
            return layer.facts
        layer.facts, probe = replace(layer.facts, squeezed=True), squeezed
    may_be = layer.count == 1 and not layer.takes("causal")
    layer.facts = replace(
        layer.facts,
        causal=may_be and hides_later_keys(layer, draw(probe)),
        weights=next((name for name in ("head", "average") if returns(weights, probe, name)), ""),
    )
    return takes_masks(layer, draw(probe)) if layer.takes("mask") else layer.facts


def probed(layer: UserLayer, case: Case) -> Case:
    """The case without a mask; of a layer of one array with one tensor as query, key and value."""
    case = tied(plain(case), layer.facts.tie)
    if layer.count > 1:
        return case
    try:
        own = replace(case, sizes=replace(case.sizes, Lk=case.sizes.Lq))
        return own.with_options(self_attention=True)
    except ValueError:
        return case


def in_form(facts: Facts, case: Case) -> Case | None:
    """The case as a layer of these facts takes it; None if there is none."""
    try:
        return facts.fitted(case, lambda features: None)
    except ValueError:
        return None


def answered(layer: UserLayer, inputs: Inputs) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The output and the weights of a call; None for what raises, or is no array."""
    backend = layer.backend
    try:
        output, weights = layer.prepare(inputs)()
        arrays = [backend.to_numpy(x) if backend.is_array(x) else None for x in (output, weights)]
    except Exception:
        return None, None
    return arrays[0], arrays[1]


def fits(array: np.ndarray | None, inputs: Inputs, name: str) -> bool:
    """True for an array of the shape of an output."""
    return array is not None and array.shape == inputs.output_shape(name)


def returns(weights: np.ndarray | None, case: Case, name: str) -> bool:
    """True for weights of every head ("head"), or of their average."""
    try:
        return fits(weights, draw(case.with_options(returned=name)), "weights")
    except ValueError:
        return False


def with_other_last_key(inputs: Inputs) -> Inputs:
    """The inputs with other numbers in the last key and value, and in the query that is the same row."""
    own = ("query", "key", "value") if inputs.self_attention else ("key", "value")
    arrays = {name: inputs.arrays[name].copy() for name in own}
    for array in arrays.values():
        array[:, -1] = -2 * array[:, -1]
    return inputs.replace(**arrays)


def other_rows(output: np.ndarray | None, inputs: Inputs) -> np.ndarray | None:
    """The rows of an output but for the last one of self-attention."""
    if output is None or not inputs.self_attention:
        return output
    return output[..., :-1, :]


def hides_later_keys(layer: UserLayer, inputs: Inputs) -> bool:
    """True if the first row of an answer without a mask does not depend on the last key."""
    if not (inputs.self_attention and inputs.operator.has_keys) or inputs.sizes.Lq < 2:
        return False
    first, second = (answered(layer, i)[0] for i in (inputs, with_other_last_key(inputs)))
    if first is None or second is None:
        return False
    return same(first[..., 0, :], second[..., 0, :])


def same(first: np.ndarray | None, second: np.ndarray | None) -> bool:
    """True for two arrays of the same numbers."""
    return (
        first is not None and second is not None and np.array_equal(first, second, equal_nan=True)
    )


def takes_masks(layer: UserLayer, inputs: Inputs) -> Facts:
    """The facts with the form of masks in which a hidden key has no influence; else the first form in
    which a call succeeds."""
    s = inputs.sizes
    mask = np.ones((s.B, 1, s.Lq, s.Lk), bool)
    mask[..., -1] = False
    inputs = inputs.with_dense(mask_array=mask)
    plain_facts, possible = layer.facts, list[Facts]()
    for axes in (4, 3):
        for kind in MASKS:
            layer.facts = replace(plain_facts, mask_axes=axes, mask_kind=kind)
            first, second = (answered(layer, i)[0] for i in (inputs, with_other_last_key(inputs)))
            if not fits(first, inputs, "output") or second is None:
                continue
            rows = [other_rows(one, inputs) for one in (first, second)]
            if same(*rows):
                return layer.facts
            possible.append(layer.facts)
    unknown = replace(plain_facts, mask_kind=NO_MASK) if layer.readings else plain_facts
    layer.facts = possible[0] if possible else unknown
    return layer.facts


def dtypes_of(layer: UserLayer, case: Case) -> tuple[str, ...]:
    """The claimed dtypes that a layer's variables have if they are asked for; () if all."""
    claimed, own = layer.claims.dtypes, list[str]()
    for name in claimed:
        inputs = draw(replace(probed(layer, case), dtype=DTYPES[name]))
        try:
            made = layer.layer(inputs)
            variables = layer.variables(made, inputs).values()
        except Exception:
            continue
        long = DTYPES[name].long_name
        if all(str(getattr(v.dtype, "name", v.dtype)).endswith(long) for v in variables):
            own.append(name)
    return () if len(own) in (0, len(claimed)) else tuple(own)
