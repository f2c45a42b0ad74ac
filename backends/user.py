"""A person's own function or layer: what its signature accepts, and a layer as an implementation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from backends.declared import LAYER_FEATURES, Declared
from backends.masks import LayerMasks, full
from backends.memory import sequences
from backends.prepared import LAYER_OUTPUTS, PreparedCall
from backends.protocol import Backend, Implementation
from suite.spec.case import Case
from suite.spec.inputs import Inputs, draw
from suite.spec.operator import Operator


def lacking(accepted: frozenset[str], needed: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The features a user's function lacks, with the reason: `needed` maps parameters to features."""
    return {
        feature: f"the function has no parameter {parameter}"
        for parameter, features in needed.items()
        if parameter not in accepted
        for feature in features
    }


def accepted_parameters(
    function: Callable[..., Any], known: tuple[str, ...], positional: int, native: str
) -> frozenset[str]:
    """Which of the native signature's parameters a user's function accepts.

    Raises TypeError where it cannot take `positional` positional arrays or asks for more.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"cannot read the signature of {function!r}: {error}; expected that of {native}"
        ) from error
    parameters = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return frozenset(known)
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    keyword_only = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is p.KEYWORD_ONLY and p.name not in known
    ]
    takes = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    enough = len(takes) >= positional or any(p.kind is p.VAR_POSITIONAL for p in takes)
    if not enough or len(required) > positional or keyword_only:
        raise TypeError(
            f"{getattr(function, '__name__', function)}{signature} does not fit; expected the "
            f"signature of {native}: {positional} arrays (query, key, value), then any of "
            f"{', '.join(known)} as keywords"
        )
    return frozenset(known) & frozenset(parameters)


CONFIGURATION = {
    "query_width": "cross",
    "key_width": "key-width",
    "value_width": "value-width",
    "output_width": "output-width",
    "heads": "",
    "key_heads": "grouped-heads",
    "key_size": "head-width",
    "value_size": "value-size",
    "bias": "no-projection-bias",
    "dtype": "",
}
"""What a user's factory is told, by keyword, where it takes the keyword; and the feature that its layer
lacks where it does not (see `UserLayer`)."""

CALL = {
    "mask": ("mask", "mask-array", "window"),
    "valid": (),
    "causal": ("native-causal",),
    "bias": ("bias", "bias-with-mask"),
    "return_weights": ("average", "weights"),
}
"""Keywords a user's layer may take, and the features it lacks where it does not."""


class UserLayer(Implementation):
    """A user's own layer, judged like any other; see the documentation of `--like`.

    `factory(**configuration)` returns a callable layer. It is told those of `CONFIGURATION` whose names
    it takes, and is called with query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev), or with the query
    alone where it takes one array, and with those of `CALL` that it takes: `mask` boolean (B, H, Lq, Lk)
    or (B, 1, Lq, Lk), True attends; `valid` boolean (B, Lk), True attends; `causal` True; `bias`
    (B, H, Lq, Lk); `return_weights` True, for which it returns (output, weights (B, H, Lq, Lk)).

    A layer with a method `load_attention(parameters)` is handed the canonical parameters, and judged
    against the reference; one without keeps its own, and is judged by what needs no reference.

    Raises TypeError where the factory or the layer takes none of what it must.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[..., Any],
        name: str,
        numerics: str,
        operator: Operator,
    ) -> None:
        self.backend, self.operator, self.factory = backend, operator, factory
        self.factory_keywords = _accepted(factory, CONFIGURATION)
        self.kept: dict[tuple[Any, ...], Any] = {}
        case = Case.parse(next(iter(operator.gradients("smoke"))))
        layer = self.layer(draw(case))
        self.call_keywords = _accepted(_called(layer), CALL)
        self.count = _positional(_called(layer))
        if self.count not in (1, 3):
            raise TypeError(
                f"a layer is called with query, key and value, or with one array; {name} takes "
                f"{self.count} positional arrays"
            )
        declared = Declared(
            numerics,
            LAYER_FEATURES,
            self.refusals(projects="output_kernel" in case.axes),
            takes_parameters=hasattr(layer, "load_attention"),
        )
        super().__init__(backend, name, declared)

    def refusals(self, projects: bool) -> dict[str, str]:
        """What the layer lacks, with the reason; `projects`: it has an output projection."""
        reasons = {
            "squeezed": "is called with a batch",
            "dropout": "is judged without dropout",
            "splits-width": "is told the sizes of its heads, or works them out",
        }
        for keyword, feature in CONFIGURATION.items():
            # Without an output projection nothing in a layer need be as wide as its query.
            if (
                feature
                and keyword not in self.factory_keywords
                and (projects or feature != "cross")
            ):
                reasons[feature] = f"the factory has no parameter {keyword}"
        if self.count == 1:
            reasons["cross"] = "the layer takes one array"
        for keyword, features in CALL.items():
            if keyword not in self.call_keywords:
                reasons |= dict.fromkeys(features, f"the layer has no parameter {keyword}")
        if not self.call_keywords & {"mask", "causal"}:
            reasons["causal"] = "the layer has neither causal nor mask"
        if not self.call_keywords & {"mask", "valid"}:
            reasons["padding"] = "the layer has neither valid nor mask"
        return reasons | {"average": "the layer is asked for the weights of every head"}

    def configuration(self, inputs: Inputs) -> dict[str, Any]:
        """The values of `CONFIGURATION`."""
        s, w = inputs.sizes, inputs.widths
        return {
            "query_width": w.query, "key_width": w.key, "value_width": w.value,
            "output_width": w.output, "heads": s.H, "key_heads": s.Hkv, "key_size": s.D,
            "value_size": s.Dv, "bias": "query_bias" in inputs.parameters,
            "dtype": inputs.dtype.long_name,
        }  # fmt: skip

    def layer(self, inputs: Inputs) -> Any:
        """The factory's layer for the inputs' sizes, with parameters of its own."""
        values = self.configuration(inputs)
        layer = self.factory(**{n: v for n, v in values.items() if n in self.factory_keywords})
        return self.backend.placed(layer, inputs.dtype)

    def build(self, inputs: Inputs) -> Any:
        """The layer with the inputs' parameters; one that keeps its own is built once for its sizes."""
        key = (*self.configuration(inputs).values(),)
        if key in self.kept:
            return self.kept[key]
        layer = self.layer(inputs)
        if hasattr(layer, "load_attention"):
            layer.load_attention(
                {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}
            )
        else:
            self.kept[key] = layer
        return layer

    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, layer = self.backend, self.build(inputs)
        masks = LayerMasks.of(inputs, "causal" in self.call_keywords, "valid" in self.call_keywords)
        arrays = sequences(backend, inputs)
        if self.count == 1:
            arrays = {"query": arrays["query"]}
        named: dict[str, Any] = {}
        if masks.causal:
            named["causal"] = True
        if masks.valid is not None:
            named["valid"] = backend.array(masks.valid, None)
        if masks.rest is not None:
            mask = masks.rest
            if inputs.form != "raw":
                same = mask.ndim < 4 or mask.shape[1] == 1
                mask = full(mask, inputs)[:, :1] if same else full(mask, inputs)
            named["mask"] = backend.array(mask, None)
        if inputs.bias is not None:
            named["bias"] = backend.array(full(inputs.bias, inputs), inputs.dtype)
        if inputs.returned != "none":
            named["return_weights"] = True
        order = list(arrays)

        def call(**arguments: Any) -> tuple[Any, Any]:
            places = [arguments.pop(name) for name in order]
            answer = layer(*places, **arguments)
            pair = isinstance(answer, tuple) and len(answer) == 2
            return (answer[0], answer[1]) if pair else (answer, None)

        return PreparedCall(call, arrays | named, LAYER_OUTPUTS)


def _called(layer: Any) -> Callable[..., Any]:
    """What a call of the layer ends in: torch's `forward`, Keras' `call`, else the layer itself."""
    for name in ("forward", "call"):
        if callable(getattr(layer, name, None)):
            return getattr(layer, name)
    return layer


def _accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return frozenset(known)
    return frozenset(known) & {p.name for p in parameters}


def _positional(function: Callable[..., Any]) -> int:
    """How many arrays a layer must be called with."""
    parameters = inspect.signature(function).parameters.values()
    return sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
        if p.name not in CALL
    )
