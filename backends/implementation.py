"""An implementation: one way in which a framework computes an operator, and what it can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from backends.declared import OF_BACKENDS, THROUGH, Declared, checked_name
from backends.limits import ANY
from backends.prepared import PreparedCall
from suite.spec.case import Case
from suite.spec.catalogue import AnyCase
from suite.spec.dtypes import DTYPES, DType
from suite.spec.elections import QUESTIONS
from suite.spec.features import WORDS
from suite.spec.inputs import Inputs
from suite.spec.operator import Operator
from suite.spec.operators.sdpa import SDPA

if TYPE_CHECKING:
    from backends.protocol import Backend


ALL_BUT_FLOAT32 = tuple(name for name in DTYPES if name != "f32")

ORDINARY = ("normal", "ties", "integers", "onehot")
"""Recipes whose values mean the same in every dtype."""


class Implementation(ABC):
    """One way in which a framework computes an operator.

    `operator` is what it computes: only cases of this operator are asked. `mode` is "eager" or
    "compiled". `declared` is all that it says of itself. A class gives name and declaration as
    attributes, or hands them to the constructor, which raises DeclarationError for a bad name.
    """

    name: str
    operator: Operator = SDPA
    mode = "eager"
    declared = Declared()
    textbook = False
    """Whether it is code of the suite's own, in the framework's single operations."""
    judged: Any = None
    """Of a person's function or layer: the function, or what makes the layer."""
    beside: Implementation | None = None
    """Of a person's function: the framework's own attention, beside which its elections are shown."""
    argument_names: tuple[str, ...] = ()
    """Of a person's function: what its arguments are called, one of which an error that refuses a case
    names."""
    optimized: Implementation | None = None
    """Of a quick backend: the same implementation in the backend that compiles with all optimisations."""
    remarks: tuple[str, ...] = ()
    """Of a person's function: what the person should know of how it is asked."""

    def __init__(self, backend: Backend, name: str = "", declared: Declared | None = None) -> None:
        self.backend = backend
        more = THROUGH if self.mode == "compiled" else ""
        self.name = checked_name("an implementation", name or self.name, more)
        self.declared = (declared or self.declared).on(backend.device)

    @property
    def later(self) -> frozenset[str]:
        """What is asked a level later: short names of dtypes, and "variations" of cases (see
        `suite.spec.levels.POSTPONED`).

        Textbook code is the suite's own, in operations that functions and layers are asked in every
        dtype and variation, unless a runtime makes kernels of its own of the code.
        """
        own = self.textbook and not self.backend.compilers.runs_models
        return frozenset({*ALL_BUT_FLOAT32, "variations"}) if own else frozenset()

    @abstractmethod
    def prepare(self, inputs: Inputs) -> PreparedCall:
        """Convert the inputs and return the call; a layer is a fresh one with the inputs' parameters.

        Only the call may raise the framework's errors.
        """

    def prepare_fresh(self, inputs: Inputs) -> PreparedCall:
        """`prepare`, with a program of its own where the call is compiled."""
        return self.prepare(inputs)

    def differentiable(self, inputs: Inputs) -> PreparedCall:
        """The call to differentiate: where it can be, it takes canonical parameters as arguments, too."""
        return self.prepare(inputs)

    def differentiable_fresh(self, inputs: Inputs) -> PreparedCall:
        """`differentiable`, as a probe asks for it that nothing before may have a part in."""
        return self.differentiable(inputs)

    def paths(self, inputs: Inputs) -> Mapping[str, PreparedCall]:
        """The same problem by other flags that must not change the answer, by the flags' names."""
        return {}

    def refused(self, inputs: Inputs) -> Mapping[str, Callable[[], Any]]:
        """Calls beside these inputs' own by arguments that mean nothing, by what is wrong with them: each
        must raise. What a framework leaves unchecked, and says nothing of, is none of them."""
        return {}

    def end_of_cell(self, passed: bool) -> bool:
        """The cell that these calls were prepared for is judged: keep what was compiled for it for other
        cells where it passed, forget it otherwise. Returns whether anything kept before took part."""
        return False

    def unsupported(self, case: AnyCase) -> str | None:
        """Why this case is not supported, or None. Reads declarations only; runs nothing."""
        if case.dtype.name not in self.declared.dtypes:
            return f"dtype {case.dtype.long_name} is not supported"
        missing = self.missing(case.needs)
        if missing is not None:
            return missing
        return self.beyond_limits(case) if isinstance(case, Case) else None

    def beyond_limits(self, case: Case) -> str | None:
        """Why a case lies beyond the declared limits, or None."""
        limits = self.declared.limits_for(case.dtype)
        return limits.refusal(case.sizes, case.option("scale"))

    def refuses(self, inputs: Inputs) -> str | None:
        """Why these inputs, a case's own or a variation of them, are not supported, or None."""
        case = inputs.case
        if not inputs.operator.is_layer and inputs.sizes != case.sizes:
            case = replace(case, sizes=inputs.sizes)
        return self.missing(inputs.needs) or self.unsupported(case)

    def nearest_supported(self, case: AnyCase) -> Case | None:
        """The nearest case that is supported; None if this case is supported itself, or if none is near.

        A case beyond the declared limits is asked in the nearest sizes. A user function is also asked in
        another dtype, and without the features that it lacks (see `Case.without`).
        """
        limited = self.declared.is_user_code or self.declared.limits != ANY
        if not limited or not isinstance(case, Case) or self.unsupported(case) is None:
            return None
        twin = case
        if case.dtype.name not in self.declared.dtypes:
            if not self.declared.is_user_code or case.recipe not in ORDINARY:
                return None
            twin = replace(twin, dtype=DTYPES[self.declared.dtypes[0]])
        if self.declared.is_user_code:
            twin = twin.without([name for name in twin.needs if self.missing([name]) is not None])
        if not case.operator.is_layer:
            limits = self.declared.limits_for(twin.dtype)
            twin = replace(twin, sizes=limits.fitted(twin.sizes))
        return twin if self.unsupported(twin) is None else None

    def missing(self, features: Iterable[str]) -> str | None:
        """Why the implementation or its backend lacks one of the features; None where they have all."""
        refusals = {**self.backend.refusals, **self.declared.refusals}
        for feature in features:
            if feature in refusals:
                return refusals[feature]
            if feature not in self.declared.features | OF_BACKENDS:
                return f"does not declare {feature} ({WORDS[feature]})"
        return None

    def numerics_for(self, dtype: DType) -> str:
        """The numerics class declared for a dtype; "" where none is, since the dtype is not supported."""
        return self.declared.numerics_for(dtype)

    def elected(self, question: str, dtype: DType) -> str | None:
        """The declared answer to a question in a dtype; None where it is left to be observed."""
        if question not in QUESTIONS:
            raise KeyError(question)
        answer = self.declared.elections.get(question)
        return answer if answer is None or isinstance(answer, str) else answer.get(dtype.name)

    def __str__(self) -> str:
        return f"{self.backend.name}:{self.name}"
