"""A user's layer as an implementation; see the documentation of `--like`."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from backends.binder import Binder, Parameter, arguments, ends_in
from backends.claims import Claims
from backends.declared import LAYER_FEATURES, Declared, UsageError
from backends.implementation import as_in_programs
from backends.masks import LayerMasks, full
from backends.memory import sequences
from backends.prepared import LAYER_OUTPUTS, PreparedCall
from backends.protocol import Backend, Implementation
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase, cases, gradient_cases, of_operator
from suite.spec.dtypes import DType
from suite.spec.inputs import Inputs, draw
from suite.spec.operator import Operator
from suite.spec.operators.encoder import FEATURES
from suite.spec.vocabulary import OPERANDS


def option(name: str) -> Callable[[Inputs], Any]:
    """A function that returns the value of a case's option; None if the operator lacks the option."""
    return lambda inputs: inputs.case.option(name)


def hidden_width(inputs: Inputs) -> int | None:
    """The hidden width of an encoder's feed-forward network; None for other layers."""
    return None if inputs.case.option("pre") is None else inputs.letters["o"]


FACTORY: tuple[Parameter[Inputs], ...] = (
    Parameter("query_width", ("cross",), lambda inputs: inputs.widths.query),
    Parameter("key_width", ("key-width",), lambda inputs: inputs.widths.key),
    Parameter("value_width", ("value-width",), lambda inputs: inputs.widths.value),
    Parameter("output_width", ("output-width",), lambda inputs: inputs.widths.output),
    Parameter("heads", (), lambda inputs: inputs.sizes.H),
    Parameter("key_heads", ("grouped-heads",), lambda inputs: inputs.sizes.Hkv),
    Parameter("key_size", ("head-width",), lambda inputs: inputs.sizes.D),
    Parameter("value_size", ("value-size",), lambda inputs: inputs.sizes.Dv),
    Parameter("hidden_width", (), hidden_width),
    Parameter("norm_first", ("pre-norm",), option("pre")),
    Parameter("activation", ("gelu",), option("activation")),
    Parameter("epsilon", (), option("epsilon")),
    Parameter("bias", ("no-projection-bias",), lambda inputs: "query_bias" in inputs.parameters),
    Parameter("qk_norm", ("qk-norm",), option("qk_norm")),
    Parameter("rate", ("dropout",), lambda inputs: inputs.rate),
    Parameter("dtype", (), lambda inputs: inputs.dtype.long_name),
)
"""The keyword parameters of factories."""


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer: inputs, and their mask divided into the layer's arguments."""

    layer: UserLayer
    inputs: Inputs
    masks: LayerMasks

    def array(self, values: np.ndarray | None, dtype: DType | None = None) -> Any:
        """The framework's array; None for None."""
        return None if values is None else self.layer.backend.array(values, dtype)

    def mask(self) -> Any:
        """The rest of the mask besides `causal` and `valid`, broadcast to rank 4 except in the form
        "raw"."""
        mask, inputs = self.masks.rest, self.inputs
        if mask is not None and inputs.form != "raw":
            same = mask.ndim < 4 or mask.shape[1] == 1
            mask = full(mask, inputs)[:, :1] if same else full(mask, inputs)
            if self.layer.elected("mask-polarity", inputs.dtype) == "hides":
                mask = ~mask
        return self.array(mask)

    def bias(self) -> Any:
        """The bias, broadcast to (B, H, Lq, Lk)."""
        inputs = self.inputs
        bias = None if inputs.bias is None else full(inputs.bias, inputs)
        return self.array(bias, inputs.dtype)


CALL: tuple[Parameter[LayerCall], ...] = (
    Parameter("causal", ("causal", "native-causal"), lambda call: call.masks.causal or None),
    Parameter("valid", ("padding",), lambda call: call.array(call.masks.valid)),
    Parameter("mask", ("mask", "mask-array", "window", "causal", "padding"), LayerCall.mask),
    Parameter("bias", ("bias", "bias-with-mask"), LayerCall.bias),
    Parameter(
        "return_weights",
        ("average", "weights"),
        lambda call: call.inputs.returned != "none" or None,
    ),
    Parameter("training", (), lambda call: call.inputs.training),
    Parameter("seed", (), lambda call: call.inputs.dropout_seed),
)
"""The keyword parameters of layers."""


@dataclass(frozen=True)
class ObservedLayer:
    """What a layer shows.

    - `call`: a callable with the signature of the layer's call
    - `switches`: True if it has a method `train`; `takes_parameters`: a method `load_attention`
    - `unread`: the errors of `load_attention` (see `UserLayer.loaded`)
    """

    call: Callable[..., Any]
    switches: bool
    takes_parameters: bool
    unread: Mapping[frozenset[str], str]


class UserLayer(Implementation):
    """A user's layer; see the documentation of `--like`.

    `factory(**configuration)` returns a callable layer, and receives the keywords of `FACTORY` that it
    takes. The layer is called with query (B, Lq, Eq), key (B, Lk, Ek) and value (B, Lk, Ev), or only with
    the query if it takes one array, and with the keywords of `CALL` that it takes:

    - `mask`: boolean (B, H, Lq, Lk) or (B, 1, Lq, Lk), True attends
    - `valid`: boolean (B, Lk), True attends
    - `causal`: True
    - `bias`: (B, H, Lq, Lk)
    - `return_weights`: True; the layer then returns (output, weights (B, H, Lq, Lk))
    - `training`: True in training; a layer may have a method `train(mode)` instead
    - `seed`: the seed of dropout

    A layer with a method `load_attention(parameters)` receives the canonical parameters and is compared
    with the reference. Without the method the layer keeps its own parameters, and only checks without a
    reference apply. A case is unsupported if `load_attention` does not read all parameters of the case,
    or reads others.

    Raises TypeError if the signature of the factory or layer does not fit. Raises UsageError if a
    parameter's name is similar to one in `CALL`, or if parameters are never read, unless
    `Claims.allow_unused`.
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
        self.factory = Binder.of(factory, name, FACTORY, (), "factory")
        self.kept: dict[tuple[Any, ...], Any] = {}
        case = of_operator(operator, gradient_cases, "smoke")[0]
        self.seen = self.observed(case)
        self.called = Binder.of(self.seen.call, name, CALL, None, "layer")
        self.count = len(self.called.arrays)
        if self.count not in (1, 3):
            raise TypeError(
                f"a layer is called with query, key and value, or with one array; {name} takes "
                f"{self.count} positional arrays"
            )
        self.projects = "output_kernel" in case.axes
        self.unread = self.seen.unread
        if not claims.allow_unused:
            self.called.check_names(name)
            self.check_read(name, case)
        super().__init__(backend, name, self.declaration())
        self.argument_names = (*OPERANDS, *(p.name for p in CALL), *(p.name for p in FACTORY))
        self.remarks = self.called.remarks

    def observed(self, case: Case) -> ObservedLayer:
        """What a layer of the factory shows, made for a case."""
        layer = self.layer(draw(case))
        takes_parameters = hasattr(layer, "load_attention")
        return ObservedLayer(
            ends_in(layer), callable(getattr(layer, "train", None)), takes_parameters,
            self.loaded(case) if takes_parameters else {},
        )  # fmt: skip

    @property
    def trains(self) -> bool:
        """True if the layer has a training mode."""
        return self.seen.switches or "training" in self.called.taken

    def declaration(self) -> Declared:
        """The layer's declaration, by its keywords and claims."""
        return self.claims.declared(
            LAYER_FEATURES | FEATURES | {"qk-norm"},
            refusals=self.refusals(),
            takes_parameters=self.seen.takes_parameters,
            dropout="elements" if self.trains and "rate" in self.factory.taken else "",
        )

    def with_one_more(self) -> dict[str, UserLayer]:
        """Copies of the layer whose factory or call takes one more keyword, by a description."""
        layers = {}
        for field, binder in (("factory", self.factory), ("called", self.called)):
            for keyword, more in binder.with_one_more().items():
                layers[f"{keyword} of the {binder.what}"] = layer = copy(self)
                setattr(layer, field, more)
                layer.declared = layer.declaration().on(self.backend.device)
        return layers

    def loaded(self, first: Case) -> dict[frozenset[str], str]:
        """The errors of `load_attention` by set of parameter names, "" if all parameters are read. One
        case of each set is tried."""
        operator = self.operator
        pools = (of_operator(operator, pool, "standard") for pool in (gradient_cases, cases))
        sets: dict[frozenset[str], Case] = {parameters_of(first): first}
        for case in chain.from_iterable(pools):
            sets.setdefault(parameters_of(case), case)
        return {names: self.misread(draw(case)) for names, case in sets.items()}

    def misread(self, inputs: Inputs) -> str:
        """The error of `load_attention` for the inputs' parameters: unread or unknown parameters, or an
        exception; "" if there is none."""
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
        """Raise UsageError if parameters are never read. A layer may leave out all biases."""
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
        """The nearest supported case; for a layer without biases the case without biases."""
        if isinstance(case, Case) and _biases(parameters_of(case)) and self.unsupported(case):
            bare = _without_biases(case)
            if bare is not None and self.unsupported(bare) is None:
                return bare
            case = bare or case
        return super().nearest_supported(case)

    def refusals(self) -> dict[str, str]:
        """The features that the layer lacks, with the reason."""
        reasons = self.called.lacking | self.factory.lacking
        if not self.projects:
            # Without an output projection no width depends on the query's width.
            reasons.pop("cross", None)
        if not self.trains:
            reasons.setdefault("dropout", "the layer has no parameter training")
        if any(not reason and not _biases(names) for names, reason in self.unread.items()):
            reasons.pop("no-projection-bias", None)
        if self.count == 1:
            reasons["cross"] = "the layer takes one array"
        return reasons | {
            "average": "the layer is asked for the weights of every head",
            "squeezed": "is called with a batch",
            "splits-width": "is told the sizes of its heads, or works them out",
        }

    def layer(self, inputs: Inputs) -> Any:
        """A layer of the factory for the inputs' sizes, with the layer's own parameters."""
        layer = self.judged(**self.factory.bind(inputs))
        return self.backend.memory.placed(layer, inputs.dtype, inputs.training)

    def parameters(self, inputs: Inputs) -> dict[str, Any]:
        """The inputs' parameters as the framework's arrays."""
        return {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

    def build(self, inputs: Inputs) -> Any:
        """The layer with the inputs' parameters. A layer with own parameters is built once per
        configuration."""
        key = (*arguments(FACTORY, inputs).items(), inputs.training)
        if key in self.kept:
            return self.kept[key]
        layer = self.layer(inputs)
        if hasattr(layer, "load_attention"):
            layer.load_attention(self.parameters(inputs))
        else:
            self.kept[key] = layer
        return layer

    @as_in_programs
    def prepare(self, inputs: Inputs) -> PreparedCall:
        backend, layer = self.backend, self.build(inputs)
        taken = self.called.taken
        masks = LayerMasks.of(inputs, "causal" in taken, "valid" in taken)
        arrays = sequences(backend, inputs)
        if self.count == 1:
            arrays = {"query": arrays["query"]}
        named = self.called.bind(LayerCall(self, inputs, masks), inputs.needs)
        drops = bool(inputs.training and inputs.rate)
        order = list(arrays)

        def call(**arguments: Any) -> tuple[Any, Any]:
            if drops:
                backend.reseed(inputs.dropout_seed)
            places = [arguments.pop(name) for name in order]
            answer = layer(*places, **arguments)
            pair = isinstance(answer, tuple) and len(answer) == 2
            return (answer[0], answer[1]) if pair else (answer, None)

        held = backend.memory.parameters(layer)
        return PreparedCall(call, arrays | named, LAYER_OUTPUTS, held=held)


def parameters_of(case: Case) -> frozenset[str]:
    """The names of a case's parameters."""
    return frozenset(case.operator.learned(case.axes))


class _Read(UserDict[str, Any]):
    """A dictionary of parameters that records the names that were read."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        super().__init__(parameters)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)


def _biases(names: Iterable[str]) -> set[str]:
    """The names of projection biases."""
    return {name for name in names if name.endswith("_bias")}


def _without_biases(case: Case) -> Case | None:
    """The case without projection biases; None if its operator lacks the option."""
    if "without_biases" not in {option.name for option in case.operator.options}:
        return None
    return case.with_options(without_biases=True)
