"""An implementation: one way in which a framework computes an operator, and its declaration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Self

from attention_conformance.backends.declared import OF_BACKENDS, THROUGH, Declared, checked_name
from attention_conformance.backends.limits import ANY
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase
from attention_conformance.suite.spec.dtypes import DTYPES, DType
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.operator import Operator
from attention_conformance.suite.spec.operators import WORDS
from attention_conformance.suite.spec.operators.paged import with_pages_of
from attention_conformance.suite.spec.operators.sdpa import SDPA

if TYPE_CHECKING:
    from attention_conformance.backends.protocol import Backend


def as_in_programs(prepare: Callable[..., PreparedCall]) -> Callable[..., PreparedCall]:
    """Decorates a method that prepares calls of user code. Preparation and call run in the context of
    users' programs (`Engine.surroundings`), and a backend may compile the call as one program
    (`Engine.as_program`)."""

    @wraps(prepare)
    def prepare_in_context(self: Any, inputs: Inputs, **options: Any) -> PreparedCall:
        backend = self.backend
        within = backend.surroundings(inputs.dtype)
        with within():
            return backend.as_program(self, prepare(self, inputs, **options).under(within))

    return prepare_in_context


ALL_BUT_FLOAT32 = tuple(name for name in DTYPES if name != "f32")

ORDINARY = ("normal", "ties", "integers", "onehot")
"""Recipes of inputs whose cases make sense in every dtype."""


class Implementation(ABC):
    """One way in which a framework computes an operator.

    `operator` is the computed operator: only its cases are tested. `mode` is "eager" or "compiled". Name
    and declaration are class attributes or arguments of the constructor. It raises DeclarationError for
    an invalid name.
    """

    name: str
    operator: Operator = SDPA
    mode = "eager"
    declared = Declared()
    textbook = False
    """True for the suite's own code in the framework's basic operations."""
    judged: Any = None
    """The user's function, or the factory of the user's layer; None for a framework's code."""
    beside: Implementation | None = None
    """For a user's function: the framework's own attention, with whose elections its own are compared."""
    axis_order = "bhld"
    """The axis order of the operands. If the backend has strides, a case in another order has operands
    that are not contiguous."""
    argument_names: tuple[str, ...] = ()
    """For a user's function: its argument names. An error that refuses a case must name one of them."""
    optimized: Implementation | None = None
    """In a quick backend: the same implementation in the backend with all optimisations."""
    remarks: tuple[str, ...] = ()
    """For a user's function: remarks for the user on how the function is called."""
    causal_alignment = "top-left"
    """The alignment of the causal flag if the answer to the question `causal-alignment` is unknown."""
    advice: tuple[str, tuple[str, ...]] = ("", ())
    """For a user's function: a claim that trial calls suggest, as a sentence, and the features of cases
    that fail without the claim."""

    def __init__(self, backend: Backend, name: str = "", declared: Declared | None = None) -> None:
        self.backend = backend
        more = THROUGH if self.mode == "compiled" else ""
        self.name = checked_name("an implementation", name or self.name, more)
        self.declared = (declared or self.declared).on(backend.device)

    @property
    def postponed(self) -> frozenset[str]:
        """Short dtype names, and the words "variations" and "kernels": their cells are tested only from a
        later level on (see `suite.spec.levels.POSTPONED`).

        Textbook code postpones all dtypes but float32, because the framework's functions and layers test
        its operations in every dtype. A runtime that rewrites the code into its own kernels postpones
        none.
        """
        if not self.textbook or self.backend.runs_models:
            return frozenset()
        return frozenset({*ALL_BUT_FLOAT32, "variations"})

    @abstractmethod
    def prepare(self, inputs: Inputs) -> PreparedCall:
        """Convert the inputs and return the call. A layer is new and has the inputs' parameters.

        Errors of the framework are raised only by the call.
        """

    def timed(self, inputs: Inputs) -> PreparedCall:
        """Returns the call whose time is measured, by default that of `prepare`. Caches override it: they
        are filled before the time starts."""
        return self.prepare(inputs)

    @property
    def unwatched(self) -> Implementation:
        """The implementation whose time is measured: this one without the recording of forbidden
        calls."""
        return self

    def refusing(self, inputs: Inputs) -> PreparedCall | None:
        """For a cache: returns the call of `prepare`, in which steps may raise. The rows of a step that
        raised are its queries, and the rollback after it is left out. None for other implementations."""
        return None

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        """Returns the call to differentiate. If possible, canonical parameters are arguments, too."""
        return self.prepare(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """Returns further calls by name that must give the same answer, for example with other flags."""
        return {}

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        """Returns calls with invalid arguments, by a description of the error; each must raise. Arguments
        that the framework does not check, without documenting an error, are left out."""
        return {}

    def broken_rules(self, inputs: Inputs) -> Mapping[str, str]:
        """For an operator that is registered with its framework: returns the framework's rules that it
        breaks, by name, each with the reason."""
        return {}

    def begin_cell(self) -> None:
        """Forget compiled programs and other state that cells must not share."""
        return None

    def refusal(self, case: Case) -> str | None:
        """Returns the reason why a case exceeds limits that no declaration describes, or None."""
        return None

    def unsupported(self, case: AnyCase) -> str | None:
        """Returns the reason why a case is not supported, or None. Reads only declarations, and
        `refusal`."""
        refusal = self.refusal(case) if isinstance(case, Case) else None
        if refusal is not None:
            return refusal
        if case.dtype.name not in self.declared.dtypes:
            return f"dtype {case.dtype.long_name} is not supported"
        missing = self.missing(case.needs)
        if missing is not None or not isinstance(case, Case):
            return missing
        return self._refuses_order(case) or self.beyond_limits(case)

    def _refuses_order(self, case: Case) -> str | None:
        """Returns the reason why operands in the case's axis order are not supported, or None."""
        if case.axis_order == self.axis_order or not self.backend.has_strides:
            return None
        return self.missing(["strided-operands"])

    def beyond_limits(self, case: Case) -> str | None:
        """Returns the reason why a case exceeds the declared limits, or None."""
        limits = self.declared.limits_for(case.dtype)
        return limits.refusal(case.sizes, case.option("scale"), case.option("page_size"))

    def refuses(self, inputs: Inputs) -> str | None:
        """Returns the reason why the inputs of a case or a variation are not supported, or None."""
        case = inputs.case
        if not inputs.operator.is_layer and inputs.sizes != case.sizes:
            case = replace(case, sizes=inputs.sizes)
        return self.missing(inputs.needs) or self.unsupported(case)

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """Returns the nearest supported case. None if `case` is supported, or if there is no near case.

        A case beyond the declared limits is tested in the nearest sizes. User code is also tested in
        another dtype, axis order and scale, and without the features that it lacks (see `Case.without`).
        """
        has_limits = self.declared.is_user_code or self.declared.limits != ANY
        if not has_limits or not isinstance(case, Case) or self.unsupported(case) is None:
            return None
        nearest = case
        try:
            if case.dtype.name not in self.declared.dtypes:
                if not self.declared.is_user_code or case.recipe not in ORDINARY:
                    return None
                nearest = replace(nearest, dtype=DTYPES[self.declared.dtypes[0]])
            limits = self.declared.limits_for(nearest.dtype)
            if self.declared.is_user_code:
                nearest = nearest.without(
                    [n for n in nearest.needs if self.missing([n]) is not None]
                )
                if self._refuses_order(nearest):
                    nearest = replace(nearest, axis_order=self.axis_order)
                scale = limits.nearest_scale(nearest.option("scale"))
                if scale is not None:
                    nearest = nearest.with_options(scale=scale)
            pages = nearest.option("page_size")
            if pages is not None:
                nearest = with_pages_of(nearest, limits.nearest_page_size(pages))
            if not case.operator.is_layer:
                separate_value_size = self.missing(["value-size"]) is None
                nearest = replace(nearest, sizes=limits.fitted(nearest.sizes, separate_value_size))
        except ValueError:
            return None  # the operator has no such case, as for packed segments of other lengths
        return nearest if self.unsupported(nearest) is None else None

    def missing(self, features: Iterable[str]) -> str | None:
        """Returns the reason why the implementation or its backend lacks one of the features, or None."""
        refusals = {**self.backend.refusals, **self.declared.refusals}
        for feature in features:
            if feature in refusals:
                return refusals[feature]
            if feature not in self.declared.features | OF_BACKENDS:
                return f"does not declare {feature} ({WORDS[feature]})"
        return None

    def numerics_for(self, dtype: DType) -> str:
        """Returns the numerics class in a dtype; "" for an unsupported dtype without a declared class."""
        return self.declared.numerics_for(dtype)

    def declared_answer(self, question: str, dtype: DType) -> str | None:
        """Returns the declared answer, such as "zeros", to a question about implementation-defined
        behaviour (`suite.spec.elections`) in a dtype; None if the answer is to be observed. Raises
        KeyError for an unknown question."""
        if question not in QUESTIONS:
            raise KeyError(question)
        answer = self.declared.elections.get(question)
        return answer if answer is None or isinstance(answer, str) else answer.get(dtype.name)

    def __str__(self) -> str:
        return f"{self.backend.name}:{self.name}"


@dataclass(frozen=True, eq=False, kw_only=True)
class Row:
    """An implementation as a row of a table: a `Kernel` or a `Layer`. They add `name` and `declared` of
    the implementation, and how it is called. In functions of a row `impl` is the implementation.

    - `postponed`, `refusal(case)`: see `Implementation`
    - `wrong`: arguments that must be refused (see `Implementation.refused`)
    """

    postponed: frozenset[str] = frozenset()
    refusal: Callable[[Case], str | None] = lambda case: None
    wrong: tuple[Mapping[str, Any], ...] = ()

    def but(self, **changes: Any) -> Self:
        """Returns the row with some fields replaced."""
        return replace(self, **changes)


class FromRow(Implementation):
    """An implementation with the name and the declaration of a row."""

    backend: Any

    def __init__(self, backend: Backend, row: Any) -> None:
        self.row = row
        super().__init__(backend, row.name, row.declared)

    @property
    def postponed(self) -> frozenset[str]:
        postponed: frozenset[str] = self.row.postponed
        return postponed

    def refusal(self, case: Case) -> str | None:
        reason: str | None = self.row.refusal(case)
        return reason
