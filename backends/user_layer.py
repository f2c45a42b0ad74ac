"""A person's own layer as an implementation, judged like any other; see the documentation of `--like`."""

from __future__ import annotations

import inspect
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from itertools import chain
from typing import Any

from backends.claims import Claims
from backends.declared import ENCODER_FEATURES, LAYER_FEATURES, Declared, UsageError
from backends.masks import LayerMasks, full
from backends.memory import sequences
from backends.prepared import LAYER_OUTPUTS, PreparedCall
from backends.protocol import Backend, Implementation
from backends.user import check_unused, ends_in
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase, cases, gradient_cases, of_operator
from suite.spec.inputs import Inputs, draw
from suite.spec.operator import Operator
from suite.spec.vocabulary import OPERANDS

CONFIGURATION = {
    "query_width": "cross",
    "key_width": "key-width",
    "value_width": "value-width",
    "output_width": "output-width",
    "heads": "",
    "key_heads": "grouped-heads",
    "key_size": "head-width",
    "value_size": "value-size",
    "hidden_width": "",
    "norm_first": "pre-norm",
    "activation": "gelu",
    "epsilon": "",
    "bias": "no-projection-bias",
    "qk_norm": "qk-norm",
    "rate": "dropout",
    "dtype": "",
}
"""What a factory is told, by keyword, where it takes the keyword; and the feature that its layer lacks
where it does not (see `UserLayer`)."""

OF_NORMS = {
    "epsilon": "epsilon", "qk_norm": "qk_norm", "norm_first": "pre", "activation": "activation",
}  # fmt: skip
"""Those of `CONFIGURATION` that are options of a case, where its operator has them, by option."""

CALL = {
    "mask": ("mask", "mask-array", "window"),
    "valid": (),
    "causal": ("native-causal",),
    "bias": ("bias", "bias-with-mask"),
    "return_weights": ("average", "weights"),
    "training": (),
    "seed": (),
}
"""Keywords a layer may take, and the features it lacks where it does not."""


class UserLayer(Implementation):
    """A person's own layer, judged like any other; see the documentation of `--like`.

    `factory(**configuration)` returns a callable layer. It is told those of `CONFIGURATION` whose names
    it takes, and is called with query (B, Lq, Eq), key (B, Lk, Ek), value (B, Lk, Ev), or with the query
    alone where it takes one array, and with those of `CALL` that it takes: `mask` boolean (B, H, Lq, Lk)
    or (B, 1, Lq, Lk), True attends; `valid` boolean (B, Lk), True attends; `causal` True; `bias`
    (B, H, Lq, Lk); `return_weights` True, for which it returns (output, weights (B, H, Lq, Lk));
    `training`, whether it trains; `seed`, that of dropout. One with a method `train` is switched by it.

    A layer with a method `load_attention(parameters)` is handed the canonical parameters, and judged
    against the reference; one without keeps its own, and is judged by what needs no reference. Where it
    does not read all that a case has, or asks for what a case has not, the case is unsupported.

    Raises TypeError where the factory or the layer takes none of what it must, and UsageError where
    there are parameters that nobody passes or reads, unless the claims allow it.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[..., Any],
        name: str,
        claims: Claims,
        operator: Operator,
    ) -> None:
        self.backend, self.operator, self.judged = backend, operator, factory
        self.claims = claims
        self.factory_keywords = _accepted(factory, CONFIGURATION)
        self.kept: dict[tuple[Any, ...], Any] = {}
        case = of_operator(operator, gradient_cases, "smoke")[0]
        layer = self.first_layer(draw(case), name)
        called = ends_in(layer)
        self.call_keywords = _accepted(called, CALL)
        self.count = _positional(called)
        if self.count not in (1, 3):
            raise TypeError(
                f"a layer is called with query, key and value, or with one array; {name} takes "
                f"{self.count} positional arrays"
            )
        self.switches = callable(getattr(layer, "train", None))
        self.projects = "output_kernel" in case.axes
        self.takes_parameters = hasattr(layer, "load_attention")
        self.unread = self.loaded(case) if self.takes_parameters else {}
        if not claims.allow_unused:
            check_unused(f"layer {name}", _unused(called), CALL, self.call_keywords)
            self.check_read(name, case)
        super().__init__(backend, name, self.declaration())
        self.argument_names = (*OPERANDS, *CALL, *CONFIGURATION)

    @property
    def trains(self) -> bool:
        """Whether the layer can be told that it trains."""
        return self.switches or "training" in self.call_keywords

    def declaration(self) -> Declared:
        """What the layer can be asked, by its keywords and its claims."""
        return self.claims.declared(
            LAYER_FEATURES | ENCODER_FEATURES | {"qk-norm"},
            refusals=self.refusals(),
            takes_parameters=self.takes_parameters,
            dropout="elements" if self.trains and "rate" in self.factory_keywords else "",
            whole_dropout=False,
        )

    def with_one_more(self) -> dict[str, UserLayer]:
        """The layer as if the factory, or the layer itself, took one keyword more, by what that is."""
        layers = {}
        for keyword in CONFIGURATION.keys() - self.factory_keywords:
            layers[f"{keyword} of the factory"] = layer = copy(self)
            layer.factory_keywords |= {keyword}
        for keyword in CALL.keys() - self.call_keywords:
            layers[f"{keyword} of the layer"] = layer = copy(self)
            layer.call_keywords |= {keyword}
        for layer in layers.values():
            layer.declared = layer.declaration().on(self.backend.device)
        return layers

    def first_layer(self, inputs: Inputs, name: str) -> Any:
        """A layer to read the signature of. Raises TypeError that names what a factory may be told."""
        try:
            return self.layer(inputs)
        except TypeError as error:
            raise TypeError(
                f"{name} cannot be called with {', '.join(sorted(self.factory_keywords)) or 'nothing'}: "
                f"{error}; a factory may ask for {', '.join(CONFIGURATION)}"
            ) from error

    def loaded(self, first: Case) -> dict[frozenset[str], str]:
        """What is wrong with how `load_attention` reads sets of parameters, "" where it reads them
        whole, by the names of the parameters; tried on one case of each set."""
        operator = self.operator
        pools = (of_operator(operator, pool, "standard") for pool in (gradient_cases, cases))
        sets: dict[frozenset[str], Case] = {parameters_of(first): first}
        for case in chain.from_iterable(pools):
            sets.setdefault(parameters_of(case), case)
        return {names: self.misread(draw(case)) for names, case in sets.items()}

    def misread(self, inputs: Inputs) -> str:
        """What `load_attention` does not read of the inputs' parameters, or asks for besides, in
        words."""
        read = _Read(self.parameters(inputs))
        try:
            self.layer(inputs).load_attention(read)
        except KeyError as error:
            return f"load_attention asks for {error.args[0]}, which there is not here"
        except Exception as error:
            return f"load_attention raised {type(error).__name__}: {error}"
        left = [name for name in inputs.parameters if name not in read.names]
        return f"load_attention never reads {', '.join(left)}" if left else ""

    def check_read(self, name: str, case: Case) -> None:
        """Raise UsageError where parameters are never read; one without biases leaves out all biases."""
        names = parameters_of(case)
        reason = self.unread.get(names, "")
        biases = [n for n in case.axes if n in _biases(names)]
        without = biases and reason == f"load_attention never reads {', '.join(biases)}"
        if reason and not without:
            raise UsageError(
                f"layer {name}: {reason}. What it does not read is not judged: read it, or say "
                "--allow-unused"
            )

    def unsupported(self, case: AnyCase) -> str | None:
        if isinstance(case, Case):
            if case.option("training") and not self.trains:
                return "the layer has no parameter training"
            reason = self.unread.get(parameters_of(case))
            if reason:
                return reason
        return super().unsupported(case)

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """As of any implementation; a layer without biases is asked the case without biases, too."""
        if isinstance(case, Case) and _biases(parameters_of(case)) and self.unsupported(case):
            bare = _without_biases(case)
            if bare is not None and self.unsupported(bare) is None:
                return bare
            case = bare or case
        return super().nearest_supported(case)

    def refusals(self) -> dict[str, str]:
        """What the layer lacks, with the reason."""
        reasons = {
            "squeezed": "is called with a batch",
            "splits-width": "is told the sizes of its heads, or works them out",
        }
        for keyword, feature in CONFIGURATION.items():
            # Without an output projection nothing in a layer need be as wide as its query.
            if (
                feature
                and keyword not in self.factory_keywords
                and (self.projects or feature != "cross")
            ):
                reasons[feature] = f"the factory has no parameter {keyword}"
        if not self.trains:
            reasons.setdefault("dropout", "the layer has no parameter training")
        if any(not reason and not _biases(names) for names, reason in self.unread.items()):
            reasons.pop("no-projection-bias", None)
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
            "value_size": s.Dv, "bias": "query_bias" in inputs.parameters, "rate": inputs.rate,
            "dtype": inputs.dtype.long_name, **self.own_configuration(inputs),
        }  # fmt: skip

    def own_configuration(self, inputs: Inputs) -> dict[str, Any]:
        """What factories of norms, and of layers that have norms, are told besides."""
        values = {keyword: inputs.case.option(name) for keyword, name in OF_NORMS.items()}
        told = {keyword: value for keyword, value in values.items() if value is not None}
        return told | {"hidden_width": inputs.letters["o"]} if "norm_first" in told else told

    def layer(self, inputs: Inputs) -> Any:
        """The factory's layer for the inputs' sizes, with parameters of its own."""
        values = self.configuration(inputs)
        layer = self.judged(**{n: v for n, v in values.items() if n in self.factory_keywords})
        return self.backend.placed(layer, inputs.dtype, inputs.training)

    def parameters(self, inputs: Inputs) -> dict[str, Any]:
        """The inputs' parameters as the framework's arrays."""
        return {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

    def build(self, inputs: Inputs) -> Any:
        """The layer with the inputs' parameters; one that keeps its own is built once for its sizes."""
        key = (*self.configuration(inputs).values(), inputs.training)
        if key in self.kept:
            return self.kept[key]
        layer = self.layer(inputs)
        if hasattr(layer, "load_attention"):
            layer.load_attention(self.parameters(inputs))
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
                if self.elected("mask-polarity", inputs.dtype) == "hides":
                    mask = ~mask
            named["mask"] = backend.array(mask, None)
        if inputs.bias is not None:
            named["bias"] = backend.array(full(inputs.bias, inputs), inputs.dtype)
        if inputs.returned != "none":
            named["return_weights"] = True
        if "training" in self.call_keywords:
            named["training"] = inputs.training
        drops = bool(inputs.training and inputs.rate)
        if "seed" in self.call_keywords:
            named["seed"] = inputs.dropout_seed
        order = list(arrays)

        def call(**arguments: Any) -> tuple[Any, Any]:
            if drops:
                backend.reseed(inputs.dropout_seed)
            places = [arguments.pop(name) for name in order]
            answer = layer(*places, **arguments)
            pair = isinstance(answer, tuple) and len(answer) == 2
            return (answer[0], answer[1]) if pair else (answer, None)

        return PreparedCall(call, arrays | named, LAYER_OUTPUTS)


def parameters_of(case: Case) -> frozenset[str]:
    """The names of a case's parameters."""
    return frozenset(case.operator.learned(case.axes))


class _Read(UserDict[str, Any]):
    """Parameters that remember which of them were read."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def _biases(names: Iterable[str]) -> set[str]:
    """Those of the parameters that are biases of projections."""
    return {name for name in names if name.endswith("_bias")}


def _without_biases(case: Case) -> Case | None:
    """The case without biases of projections; None where its operator has no such case."""
    if "without_biases" not in {option.name for option in case.operator.options}:
        return None
    return case.with_options(without_biases=True)


def _accepted(function: Callable[..., Any], known: Mapping[str, Any]) -> frozenset[str]:
    """The known keywords that a function names. What takes any keyword hands it on to a base class, which
    knows none of them."""
    return frozenset(known) & {*inspect.signature(function).parameters}


def _unused(function: Callable[..., Any]) -> list[str]:
    """The parameters with defaults that a layer is never passed."""
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is not p.empty and p.name not in CALL
    ]


def _positional(function: Callable[..., Any]) -> int:
    """How many arrays a layer must be called with."""
    parameters = inspect.signature(function).parameters.values()
    return sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
        if p.name not in CALL
    )
