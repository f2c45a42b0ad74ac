"""A user's layer as an implementation; see the documentation of `--like`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from itertools import chain
from typing import Any

from attention_conformance.backends.binder import Binder, callable_with_signature
from attention_conformance.backends.claims import Claims
from attention_conformance.backends.declared import LAYER_FEATURES, Declared, UsageError
from attention_conformance.backends.implementation import as_in_programs
from attention_conformance.backends.masks import split_native
from attention_conformance.backends.memory import operand_arrays
from attention_conformance.backends.prepared import LAYER_OUTPUTS, PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.backends.user import observing
from attention_conformance.backends.user.construct import (
    CONSTRUCTOR,
    Maker,
    array_parameters,
    operand_order,
    with_tie,
)
from attention_conformance.backends.user.found import Assignment
from attention_conformance.backends.user.layer_call import (
    CALL,
    LayerCall,
    ReadNames,
    as_kind,
    biases_of,
    parameter_names,
    without_biases,
)
from attention_conformance.backends.user.observing import (
    NO_MASK,
    Facts,
    ObservedLayer,
    without_mask_in_f32,
)
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase, cases, gradient_cases
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators import computed_like
from attention_conformance.suite.spec.operators.encoder import FEATURES
from attention_conformance.suite.spec.vocabulary import OPERANDS

WIDTHS = frozenset({"cross", "key-width", "value-width"})
"""The features that say that widths differ."""


class UserLayer(Implementation):
    """A user's layer; see the documentation of `--like`.

    `factory(**configuration)` returns a callable layer. Its parameters get the arguments of `CONSTRUCTOR`
    for their names. The layer is called with query (B, Lq, Eq), key (B, Lk, Ek) and value (B, Lk, Ev), or
    only with the query if it takes one array, and with those keywords of `CALL` that it takes:

    - `mask`: boolean (B, H, Lq, Lk) or (B, 1, Lq, Lk), True attends
    - `valid`: boolean (B, Lk), True attends; or `valid_lens`, (B,); or `key_padding_mask`, True is
      padding
    - `causal`: True
    - `bias`: (B, H, Lq, Lk)
    - `return_weights`: True; the layer then returns (output, weights (B, H, Lq, Lk))
    - `training`: True in training; a layer may have a method `train(mode)` instead
    - `seed`: the seed of dropout

    The layer is compared with the reference if it has a method `load_attention(parameters)`, which gets
    the canonical parameters, or if its variables are found by names and shapes (`backends.user.found`).
    Other layers have their own parameters: only checks without a reference apply. A case is unsupported
    if not all of its parameters can be set.

    Raises TypeError if the signature of the factory or layer does not fit. Raises UsageError if a
    parameter's name is similar to one in `CALL`, or if `load_attention` never reads parameters, unless
    `Claims.allow_unused`.
    """

    def __init__(
        self,
        backend: Backend,
        factory: Callable[..., Any],
        name: str,
        claims: Claims,
        kind: str,
    ) -> None:
        self.backend, self.operator, self.judged = backend, computed_like(kind), factory
        self.kind = kind
        self.claims, self.name = claims, name
        self.own_layers: dict[tuple[Any, ...], Any] = {}
        self.facts, self.assignments, self.chosen, self.chosen_is_right = Facts(), (), 0, True
        self.maker = Maker.of(factory, name)
        self.first_case = case = self.cases_of_kind(gradient_cases("smoke"))[0]
        self.observation = self.observed(case)
        self.own_layers.clear()  # trial calls made them outside of `as_in_programs`
        self.facts, self.unread = self.observation.facts, self.observation.unread
        self.maker = Maker.of(factory, name, self.facts.read, self.facts.joined_heads)
        self.factory = self.maker.binder
        self.call_with(self.observation.call)
        if self.facts.mask_kind == NO_MASK:
            self.called = self.called.without("mask")
        if not claims.allow_unused:
            self.called.check_names(name)
            if not self.facts.found:
                self.check_read(name, case)
        super().__init__(backend, name, self.declaration())
        names = (*OPERANDS, *(p.name for p in CALL), *(p.name for p in CONSTRUCTOR))
        self.argument_names = (*names, *self.called.names, *self.factory.names)
        self.remarks = (*self.called.remarks, *self.facts.remarks)

    assignments: tuple[Assignment, ...]
    called: Binder[LayerCall]

    def cases_of_kind(self, cases: Iterable[Case]) -> list[Case]:
        """Returns those of `cases` that are of the operator and kind that `--like` names."""
        same_operator = (case for case in cases if case.operator is self.operator)
        return [case for case in same_operator if case.option("kind") in (None, self.kind)]

    def call_with(self, call: Callable[..., Any]) -> None:
        """Set `called` and `array_count` from the signature of the layer's call. Raises TypeError unless
        the layer takes one array or three."""
        self.called = Binder.of(call, self.name, CALL, array_parameters(call, CALL), "layer")
        self.array_count = len(self.called.arrays)
        if self.array_count not in (1, 3):
            raise TypeError(
                f"a layer is called with query, key and value, or with one array; {self.name} takes "
                f"{self.array_count} positional arrays"
            )

    def takes(self, word: str) -> bool:
        """True if the layer's call has the keyword, under any of its names."""
        return bool(self.called.name_of(word))

    def observed(self, case: Case) -> ObservedLayer:
        """Returns what trial calls of a layer that the factory makes for `case` show."""
        layer = observing.fitting_layer(self, case)
        loads = hasattr(layer, "load_attention")
        unread = self.errors_by_parameters(case) if loads or self.assignments else {}
        return ObservedLayer(
            callable_with_signature(layer), callable(getattr(layer, "train", None)),
            loads or bool(self.assignments), unread, observing.facts_of(self, case),
        )  # fmt: skip

    @property
    def assignment(self) -> Assignment | None:
        """The chosen assignment of parameters to the layer's variables; None if none fits."""
        return self.assignments[self.chosen] if self.assignments else None

    @property
    def choices(self) -> int:
        """The number of assignments that fit."""
        return len(self.facts.found)

    def choose(self, number: int, right: bool = True) -> None:
        """Choose one of the assignments that fit, by number. `right` is False if none gives right
        answers."""
        self.chosen, self.chosen_is_right = number, right

    @property
    def parameters_found(self) -> str:
        """A note for the user: the chosen assignment, or that there is none; "" if the layer loads its
        parameters."""
        if self.facts.found:
            text = self.facts.found[self.chosen]
            note = f" (the closest of {self.choices} ways; none gives right answers)"
            return f"parameters: {text}{'' if self.chosen_is_right else note}" if text else ""
        if self.observation.takes_parameters:
            return ""
        return (
            "its parameters are not found by names and shapes, so no value is judged: name them as in "
            "docs/layers.md, or add a method load_attention(parameters)"
        )

    @property
    def without_sizes(self) -> str:
        """A hint to append to an error message if the layer's constructor takes no width; else ""."""
        if self.maker.takes_width:
            return ""
        return (
            "; its constructor takes no width, so its sizes are those of the code: give it parameters "
            "such as d_model and num_heads (docs/layers.md)"
        )

    @property
    def trains(self) -> bool:
        """True if the layer has a training mode."""
        return self.observation.switches or any(map(self.takes, ("training", "deterministic")))

    def declaration(self) -> Declared:
        """Returns the layer's declaration, by its keywords and claims."""
        return self.claims.declared(
            LAYER_FEATURES | FEATURES | {"qk-norm", "one-head", "gate"},
            refusals=self.refusals(),
            takes_parameters=self.observation.takes_parameters,
            dropout="elements" if self.trains and "rate" in self.factory.taken else "",
        ).but(dtypes=self.facts.dtypes or self.claims.dtypes)

    def with_one_more(self) -> dict[str, UserLayer]:
        """Returns copies of the layer whose factory or call is passed one more keyword, by a description.
        Only keywords that serve features are passed."""
        layers = {}
        for field, binder in (("factory", self.factory), ("called", self.called)):
            excluded = {p.name for p in binder.table if p.unless or not p.features}
            for keyword, longer_binder in binder.with_one_more().items():
                if keyword in excluded:
                    continue
                layers[f"{keyword} of the {binder.what}"] = layer = copy(self)
                setattr(layer, field, longer_binder)
                layer.declared = layer.declaration().on(self.backend.device)
        return layers

    def errors_by_parameters(self, first: Case) -> dict[frozenset[str], str]:
        """Returns by set of parameter names the error of setting these parameters; "" if they can be set.
        One case of each set that cases have is tried, `first` for its own set."""
        pools = (self.cases_of_kind(pool("standard")) for pool in (gradient_cases, cases))
        sets: dict[frozenset[str], Case] = {parameter_names(first): first}
        for case in chain.from_iterable(pools):
            sets.setdefault(parameter_names(case), case)
        return {
            names: self.parameter_error(draw(self.fitted(case))) for names, case in sets.items()
        }

    def parameter_error(self, inputs: Inputs) -> str:
        """Returns the error of setting the inputs' parameters by the chosen assignment or by
        `load_attention`: missing or unknown parameters, or an exception. Returns "" if there is none."""
        if self.assignment is not None:
            unread = self.assignment.missing_parameters(inputs.parameters)
            unknown = self.assignment.unknown_parameters(inputs.parameters)
            if unread:
                return f"the layer has no {', '.join(unread)}"
            return f"the layer has {', '.join(unknown)}, which there is not here" if unknown else ""
        recorded = ReadNames(self.parameters(inputs))
        try:
            self.layer(inputs).load_attention(recorded)
        except KeyError as error:
            return f"load_attention asks for {error.args[0]}, which there is not here"
        except Exception as error:
            return f"load_attention raised {type(error).__name__}: {error}"
        unread = [name for name in inputs.parameters if name not in recorded.names]
        return f"load_attention never reads {', '.join(unread)}" if unread else ""

    def check_read(self, name: str, case: Case) -> None:
        """Raise UsageError if the layer never reads a parameter of `case`. A layer may leave out all
        biases."""
        names = parameter_names(case)
        reason = self.unread.get(names, "")
        biases = [n for n in case.axes if n in biases_of(names)]
        leaves_out_biases = biases and reason == f"load_attention never reads {', '.join(biases)}"
        if reason and not leaves_out_biases:
            raise UsageError(
                f"layer {name}: {reason}. What it does not read is not judged: read it, or say "
                "--allow-unused"
            )

    def refusal(self, case: Case) -> str | None:
        if case.option("kind") not in (None, self.kind):
            return f"the layer is judged like {self.kind}"
        if case.option("training") and not self.trains:
            return "the layer has no parameter training"
        return self.unread.get(parameter_names(case)) or self.facts.refusal(case)

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """Returns the nearest supported case: in the form of the layer, without a mask that it does
        not take, and without biases if it has none. None if there is no such case, or if `case` is
        supported."""
        if not isinstance(case, Case) or self.unsupported(case) is None:
            return None
        fitted_case, bare_case = self.fitted(case), None
        if biases_of(parameter_names(fitted_case)) and self.unsupported(fitted_case):
            bare_case = without_biases(fitted_case)
        for candidate in (fitted_case, bare_case):
            if candidate is not None and self.unsupported(candidate) is None:
                return candidate
        return super().nearest_supported(bare_case or fitted_case)

    def fitted(self, case: Case) -> Case:
        """Returns the case changed in kind, sizes, axes and mask so that the layer's facts allow it
        (`Facts.fitted`). Unchanged if the operator has no such case."""
        try:
            return self.facts.fitted(as_kind(case, self.kind), self.missing)
        except ValueError:
            return case

    def refusals(self) -> dict[str, str]:
        """Returns the features that the layer lacks, each with the reason."""
        reasons = self.called.lacking | self.factory.lacking
        if "output_kernel" not in self.first_case.axes:
            # Without an output projection no width depends on the query's width.
            reasons.pop("cross", None)
        if "value_kernel" not in self.first_case.axes:
            # Values pass through as they are.
            for feature in ("value-width", "value-size", "output-width"):
                reasons.pop(feature, None)
        if not self.trains:
            reasons.setdefault("dropout", "the layer has no parameter training")
        if any(not reason and not biases_of(names) for names, reason in self.unread.items()):
            reasons.pop("no-projection-bias", None)
        if self.facts.found:
            # The layer was made with the widths of the first case, or reads widths off its arrays.
            first_needs = {*with_tie(without_mask_in_f32(self.first_case), self.facts.tie).needs}
            for feature in WIDTHS if not self.maker.takes_width else WIDTHS & first_needs:
                reasons.pop(feature, None)
        if self.array_count == 1:
            reasons["cross"] = "the layer takes one array"
        if self.kind == "self-attention":
            reasons["raw-mask"] = "the layer's masks have an axis of one head"
        reasons |= {
            "average": "the layer is asked for the weights of every head",
            "squeezed": "is called with a batch",
            "splits-width": "is told the sizes of its heads, or works them out",
        }
        return self.facts.refusals(reasons)

    def layer(self, inputs: Inputs) -> Any:
        """Returns a new layer of the factory for the inputs' sizes, with its own parameters."""
        make = partial(self.maker, inputs)
        return self.backend.placed_layer(make, inputs.dtype, inputs.training)

    def parameters(self, inputs: Inputs) -> dict[str, Any]:
        """Returns the inputs' parameters as the framework's arrays, by name."""
        return {n: self.backend.array(a, inputs.dtype) for n, a in inputs.parameters.items()}

    def build(self, inputs: Inputs) -> Any:
        """Returns a layer with the inputs' parameters. If they cannot be set, the layer keeps the
        parameters that it made itself: it is then made once for each configuration and training
        mode."""
        key = (*(row.value(inputs) for row in self.maker.binder.table), inputs.training)
        if key in self.own_layers:
            return self.own_layers[key]
        layer = self.layer(inputs)
        if hasattr(layer, "load_attention"):
            layer.load_attention(self.parameters(inputs))
        elif self.assignment is not None:
            variables = self.variables(layer, inputs)
            self.assignment.load(self.backend, variables, inputs.parameters, inputs.case)
        else:
            self.own_layers[key] = layer
        return layer

    def variables(self, layer: Any, inputs: Inputs) -> dict[str, Any]:
        """Returns the variables of a layer by path. A layer that has none yet is called once to make
        them."""
        backend = self.backend
        if not backend.layer_variables(layer) and inputs.parameters:
            self.call(layer, inputs)()
        return {path: variable for path, (variable, _) in backend.layer_variables(layer).items()}

    def added_projection(self, inputs: Inputs) -> list[Any]:
        """Returns the matrix, and the bias if there is one, of the output projection that the suite adds.
        Returns [] if the layer has its own."""
        if self.assignment is None or not self.assignment.lacks_output:
            return []
        values = inputs.parameters
        kernel = values["output_kernel"].reshape(-1, inputs.widths.output)
        biases = [values["output_bias"]] if "output_bias" in values else []
        return [self.backend.array(array, inputs.dtype) for array in (kernel, *biases)]

    @as_in_programs
    def prepare(self, inputs: Inputs) -> PreparedCall:
        return self.call(self.build(inputs), inputs)

    def call(self, layer: Any, inputs: Inputs) -> PreparedCall:
        """Returns the call of a layer."""
        backend = self.backend
        causal = self.takes("causal") or self.facts.causal
        lengths = any(map(self.takes, ("valid", "valid_lens", "key_padding_mask")))
        masks = split_native(inputs, causal=causal, lengths=lengths)
        arrays = operand_arrays(backend, inputs)
        arrays = {name: arrays[name] for name in operand_order(self.called.arrays)}
        hides = self.declared_answer("mask-polarity", inputs.dtype) == "hides"
        needs = {*inputs.needs} - self.facts.always_present
        keywords = self.called.bind(LayerCall(backend, inputs, masks, self.facts, hides), needs)
        drops = bool(inputs.training and inputs.rate)
        order, projection = list(arrays), self.added_projection(inputs)

        def projected(output: Any) -> Any:
            """The output, projected by the output projection that the suite adds, if any."""
            output = output @ projection[0] if projection else output
            return output + projection[1] if projection[1:] else output

        def call(**arguments: Any) -> tuple[Any, Any]:
            if drops:
                backend.reseed(inputs.dropout_seed)
            places = [arguments.pop(name) for name in order]
            answer = layer(*places, **arguments)
            is_tuple = isinstance(answer, tuple | list) and len(answer) > 0
            output, weights, *_ = (*answer, None) if is_tuple else (answer, None)
            return projected(output), weights

        learned = (*backend.layer_parameters(layer), *projection)
        return PreparedCall(call, arrays | keywords, LAYER_OUTPUTS, layer_parameters=learned)
