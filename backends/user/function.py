"""A user's function with the signature of its framework's own ("native") attention, as an implementation.

If the function lacks a parameter that a case needs, the case is unsupported. Features of
`suite.spec.features` are further parameters, named as the features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from attention_conformance.backends.binder import Binder, Parameter, UnreadableSignature
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import TEXTBOOK_FEATURES, Declared, UsageError
from attention_conformance.backends.forbidden import watched
from attention_conformance.backends.implementation import as_in_programs
from attention_conformance.backends.kernel import Kernel
from attention_conformance.backends.masks import IS_CAUSAL, AttentionCall, Native
from attention_conformance.backends.prepared import PreparedCall, attention_call, dropout_p_argument
from attention_conformance.backends.protocol import Backend, Implementation, own_attention, seeded
from attention_conformance.backends.sources import function_source
from attention_conformance.backends.user.construct import Maker
from attention_conformance.backends.user.names import feature_argument
from attention_conformance.backends.user.signature import Adapted, CallBinder, bind, called_by
from attention_conformance.suite.spec.binding import ADDING, AXES, Binding, described
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.features import FEATURES, Feature
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.masks import Mask, Window, is_causal, without_right_sides
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.spec.vocabulary import OPERANDS


def feature_parameter(
    feature: Feature, native_parameters: Iterable[Parameter[AttentionCall]]
) -> Parameter[AttentionCall]:
    """Returns the parameter with the name of a feature, which a function may have besides the native
    ones.

    A part of the mask is passed as this argument, not in an array. Nothing is passed if the function has
    the native parameter for the feature.
    """
    words = (feature.word, feature.name) if feature.reduction.to == "mask" else (feature.word,)
    unless = next((p.name for p in native_parameters if feature.word in p.features), "")
    return Parameter(feature.name, words, partial(feature_argument, feature), unless=unless)


def binder_of(
    native: Kernel,
    function: Callable[..., Any],
    name: str,
    claimed: Mapping[str, str],
    mask_kind: str = "",
) -> CallBinder:
    """Returns the binder of `function`, which says what each of the function's parameters is given. They
    are recognised by native or other common names (see `backends.user.signature.bind`).

    - `name`: the function's name in messages
    - `claimed`: the claim `parameters`: a parameter's name in the function -> the word for its argument
    - `mask_kind`: the claimed kind of masks; "" without a claim (see `backends.user.signature.Binding`)

    Raises TypeError and UsageError as `bind`.
    """
    native_names = [parameter.name for parameter in native.parameters]
    neutral_names = [name for name in native.neutral if name not in native_names]
    feature_rows = (feature_parameter(feature, native.parameters) for feature in FEATURES.values())
    table = (*map(Parameter, neutral_names), *feature_rows)
    try:
        merges = native.declared.merges_mask_into_bias
        return bind(function, name, native.parameters, table, claimed, mask_kind, merges)
    except UnreadableSignature:
        if getattr(function, "__name__", "") != str(native.function).rpartition(".")[2]:
            raise
        # The framework's own function, written in C++.
        rows = (*native.parameters, *table)
        return CallBinder(rows, frozenset([*native_names, *neutral_names]), arrays=OPERANDS)


class UserCallable(Implementation):
    """A user's function, called directly.

    Raises TypeError if the signature does not fit. Raises UsageError if a parameter's name is similar to
    that of a row, unless `Claims.allow_unused`.
    """

    methods: Mapping[str, Callable[..., Any]] = {}
    """The methods that are called, by name, of an object that is not called itself."""

    def __init__(
        self, backend: Backend, function: Callable[..., Any], name: str, claims: Claims
    ) -> None:
        self.judged, self.binder = function, self.bound(function, name)
        if not claims.allow_unused:
            self.binder.check_names(name)
        super().__init__(backend, name, self.declaration(claims))
        self.forbidden = claims.forbid
        self.called = watched(backend, function, self.forbidden)
        self.argument_names, self.remarks = self.binder.argument_names, self.binder.remarks

    def quickly(self, traced: UserCallable) -> Implementation:
        """Returns the implementation that calls `traced` with this binder. `traced` is the same function
        from a second import, for the quick backend. Returns this implementation itself if equal bits are
        promised or functions are forbidden."""
        if self.forbidden or {*self.declared.bitwise} - {"rerun"}:
            return self
        function = copy(self)
        function.backend, function.called, function.optimized = traced.backend, traced.called, self
        return function

    @cached_property
    def unwatched(self) -> Implementation:
        function = copy(self)
        function.called, function.forbidden = self.judged, ()
        return function

    def bound(self, function: Callable[..., Any], name: str) -> Binder[Any]:
        """Returns the binder of the function. `name` is the function's name for messages."""
        raise NotImplementedError

    def declaration(self, claims: Claims) -> Declared:
        """Returns the function's declaration, by its signature and claims."""
        raise NotImplementedError

    @as_in_programs
    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call_of(inputs)

    def call_of(self, inputs: Inputs) -> PreparedCall:
        """Returns the call of the function. `prepare` makes it part of a program if the backend can."""
        raise NotImplementedError


class UserFunction(UserCallable):
    """A user's function of plain attention. Its elections are compared with those of `beside`, by default
    the framework's own attention. `binding`: the axes, masks and outputs of its calls (see `Binding`)."""

    binder: CallBinder

    def __init__(
        self,
        backend: Backend,
        function: Callable[..., Any],
        name: str,
        claims: Claims,
        native: Kernel,
        beside: Implementation | None = None,
        binding: Binding | None = None,
    ) -> None:
        self.native, self.beside, self.claims = native, beside or own_attention(backend), claims
        self.binding = binding or claims.binding
        self.causal_alignment = self.binding.causal or self.causal_alignment
        self.axes = AXES[self.binding.axes or native.axis_order]
        self.axis_order = self.axes.order
        self.maker = Maker.of(function, name) if isinstance(function, type) else None
        super().__init__(backend, function, name, claims)
        self.ways = native.ways(n for n in native.neutral if n in self.binder.taken)
        native_names = {parameter.name for parameter in native.parameters}
        fixed = [name for name, way in self.ways.items() if not way.keys() & native_names]
        if fixed:
            remark = f"{', '.join(fixed)} is all that is passed of these parameters"
            self.remarks = (remark, *self.remarks)
        names = {name: word for word, name in self.binder.operands.items()} | {**self.binder.bound}
        used_binding = self.binding if self.binder.pair_arguments else self.binding.but(masks="")
        text = described(used_binding, names)
        if text and (self.binder.bound or replace(self.binding, causal="") != Binding()):
            self.remarks = (f"binding: {text}", *self.remarks)

    def rebind(self, binding: Binding) -> None:
        """Initialise this implementation again, with another binding of the same function."""
        arguments = self.backend, self.judged, self.name, self.claims, self.native, self.beside
        UserFunction.__init__(self, *arguments, binding)

    def bound(self, function: Callable[..., Any], name: str) -> CallBinder:
        claims = self.claims.parameters
        return binder_of(self.native, function, name, claims, self.binding.masks)

    def declaration(self, claims: Claims) -> Declared:
        return claims.declared(
            TEXTBOOK_FEATURES,
            None if self.beside is None else self.beside.declared,
            refusals=self.refusals(),
            may_be_forward_only=True,
            merges_mask_into_bias=self.merges_mask_into_bias,
            dropout="elements" if self.binder.serving("dropout") else "",
        ).without_axes(self.axes.lacks_batch, self.axes.lacks_heads)

    def refusals(self) -> dict[str, str]:
        """Returns the features that the function lacks, each with the reason: those for which it has no
        parameter, corrected by what trial calls or claims found (`Binding`).

        - A log-sum-exp that is always returned, and grouped heads that are read from shapes, need no
          parameter.
        - Grouped heads are lacking if they raise an error.
        - A bias is lacking if no parameter is for it alone, and the mask takes no added numbers.
        """
        lacking = dict(self.binder.lacking)
        if self.binding.returns == "lse":
            lacking.pop("lse", None)
        if self.binding.heads == "shapes":
            lacking.pop("grouped-heads", None)
        elif self.binding.heads:
            lacking["grouped-heads"] = "an error is raised for grouped heads"
        bias_alone = set(self.binder.serving("bias")) - set(self.binder.serving("mask"))
        if self.binding.masks not in ("", "either", "additive") and not bias_alone:
            lacking |= dict.fromkeys(ADDING, f"claims masks={self.binding.masks}")
        return lacking

    @property
    def merges_mask_into_bias(self) -> bool:
        """True if mask and bias are passed as one argument."""
        biases, masks = self.binder.serving("bias"), self.binder.serving("mask")
        if not biases:
            return self.native.declared.merges_mask_into_bias
        return not {*biases}.isdisjoint(masks)

    def refusal(self, case: Case) -> str | None:
        if self.loses_window(case):
            return "the function has other windows, and no mask to pass them by"
        return None

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """Returns the nearest supported case, or None. A window that the function cannot be passed is
        replaced: first with as many queries as keys, then also without a right side."""
        if isinstance(case, Case) and case.mask is not None and self.loses_window(case):
            longest = max(case.sizes.Lq, case.sizes.Lk)
            case = replace(case, sizes=replace(case.sizes, Lq=longest, Lk=longest))
            if self.loses_window(case) and case.mask is not None:
                case = replace(case, mask=without_right_sides(case.mask))
            if self.unsupported(case) is None:
                return case
        return super().nearest_supported(case)

    def loses_window(self, case: Case) -> bool:
        """True if the function can be passed the case's window neither as a window argument nor as a
        mask."""
        return self.moves_window(case.mask, case.sizes) and not self.binder.serving("mask")

    def moves_window(self, mask: Mask | None, sizes: Sizes) -> bool:
        """True if the function's window argument means another window than that of `mask`."""
        parts = () if mask is None else mask.parts
        sides = [part.right for part in parts if isinstance(part, Window)]
        has_right_side = any(side is not None for side in sides) and not is_causal(mask)
        drops_right_side = bool(self.binder.name_of("window_left")) and has_right_side
        shifts = self.binding.window == "last" and sizes.Lq != sizes.Lk
        return bool(sides) and (drops_right_side or shifts)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """Returns the call with each neutral value as an explicit argument, unless the argument has
        another value already. If the function returns weights, also a call whose output they are, judged
        for one-hot values."""
        prepared = self.prepare(inputs)
        ways = {
            n: way for n, way in self.ways.items() if not way.keys() & prepared.arguments.keys()
        }
        calls = prepared.with_additional_arguments(ways)
        for name, problem in self.problems(inputs).items():
            calls[name] = replace(self.weights_of(problem), problem=problem)
        return calls

    @as_in_programs
    def weights_of(self, inputs: Inputs) -> PreparedCall:
        """Returns the call whose output is the weights that the function returns."""
        return replace(self.call_of(inputs, output_index=1), outputs=("output",), source="")

    def problems(self, inputs: Inputs) -> dict[str, Inputs]:
        """Returns by path the inputs of paths that answer another problem than `inputs` (see `paths`)."""
        if self.binding.returns != "weights" or inputs.training:
            return {}
        sizes = inputs.sizes
        one_hot = np.broadcast_to(np.eye(sizes.Lk), (sizes.B, sizes.Hkv, sizes.Lk, sizes.Lk))
        return {"returned weights": inputs.replace(value=one_hot)}

    def divided(self, inputs: Inputs) -> Native:
        """Returns the mask, divided into the function's flags and the rest."""
        # torch's kernel gives NaN behind the flag for a scale of 0 or below (finding flash-causal-scale).
        flag_beside_mask = inputs.scale is None or inputs.scale > 0
        parts = self.native.divided(inputs, self.binder, flag_beside_mask)
        return parts.without_window() if self.moves_window(inputs.mask, inputs.sizes) else parts

    def passed_as(self, inputs: Inputs) -> Mapping[str, str]:
        """Returns for each array the name of its argument, if that is another name."""
        bound = self.binder.bound
        if not bound:
            return self.native.operands(inputs)
        names = {word: name for name, word in bound.items()}
        biases, masks = self.binder.serving("bias"), self.binder.serving("mask")
        if biases and inputs.bias is not None:
            names["bias"] = biases[0]
        if masks and (inputs.bias is None or not self.merges_mask_into_bias):
            names["mask"] = masks[0]
        return names

    def call_of(self, inputs: Inputs, output_index: int = 0) -> PreparedCall:
        """Returns the function's call. If the function refuses its causal flag together with a mask, the
        flag is merged into the mask. `output_index`: the index of the output in the returned tuple."""
        backend, native = self.backend, self.native
        call = AttentionCall(backend, inputs, self.divided(inputs))
        operands = dict(zip(OPERANDS, backend.operands(inputs, self.axis_order), strict=True))
        lacking = [feature for feature in inputs.needs if self.missing([feature]) is not None]
        arguments = operands | self.binder.bind(call, lacking)
        adapted = Adapted(
            backend, self.binder.with_operands_first(self.function_for(inputs)), self.binding, self.axes,
            self.binder.pair_arguments, inputs, output_index,
        )  # fmt: skip
        seeded_function = seeded(backend, adapted, inputs)

        def called(**arguments: Any) -> Any:
            try:
                return seeded_function(**arguments)
            except Exception as error:
                if inputs.form == "flag-and-mask" or IS_CAUSAL.name not in str(error):
                    raise
                merged = native.without_flag(arguments)
                if merged is None:
                    raise
            return seeded_function(**merged)

        can_be_scripted = not arguments.keys() & FEATURES.keys() and self.binder.has_plain_places
        draws = self.maker is not None or inputs.training
        constants = (output_index, inputs.form, inputs.dtype.name, inputs.case.option("lse"))
        return attention_call(
            called, arguments, inputs, axis_order=self.axis_order, operands=self.passed_as(inputs),
            source=function_source(self.called, self.name) if can_be_scripted else "",
            constants=None if draws else constants, dropping=self.dropping,
        )  # fmt: skip

    def function_for(self, inputs: Inputs) -> Callable[..., Any]:
        """Returns the function to call. For a class this is an instance for the inputs, in evaluation
        mode. Raises UsageError if the instance cannot be made, or has learned parameters."""
        if self.maker is None:
            return self.called
        backend = self.backend
        try:
            instance = backend.placed_layer(partial(self.maker, inputs), inputs.dtype)
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self.name} cannot be made from sizes alone, {type(error).__name__}: {error}; of a "
                "layer write what it is, --like=multi-head, --like=additive ... (docs/layers.md)"
            ) from error
        if backend.layer_parameters(instance):
            raise UsageError(
                f"{self.name} has parameters that are learned: it is a layer, expected "
                "--like=multi-head, --like=additive ... (docs/layers.md)"
            )
        return watched(backend, called_by(instance), self.forbidden)

    def dropping(self, rate: float) -> dict[str, Any]:
        """Returns the keyword argument that drops weights at a rate."""
        name = self.binder.name_of("dropout")
        return {name: self.binder.dropout(self.backend, rate)} if name else dropout_p_argument(rate)
