"""The binder: what a person's callable takes, and what is passed to it.

Every kind of callable (a function with a framework's signature, a merge, the factory of a layer, ...) is
a table of `Parameter`. A `Binder` is such a table beside one callable whose signature was read. Lacking
features, misspelt names and the arguments of a call follow from it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import chain
from typing import Any, Generic, TypeVar

from backends.declared import UsageError

T = TypeVar("T")

BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
"""The kinds of parameters that are passed by place."""


def unasked(call: Any) -> None:
    """The value of a parameter that is known, and that no call asks for."""


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """One parameter that a person's callable may have. It is passed by name.

    A callable without any parameter that serves one of the `features` lacks the feature. `value(call)`
    returns what is passed, None if the call does not ask for the parameter. `told`: None is passed, too.
    The parameter is left out if the callable takes the one called `unless`.
    """

    name: str
    features: tuple[str, ...] = ()
    value: Callable[[T], Any] = unasked
    told: bool = False
    unless: str = ""


def arguments(table: Iterable[Parameter[T]], call: T) -> dict[str, Any]:
    """The arguments that a call asks for of what takes the whole table."""
    values = {parameter.name: parameter.value(call) for parameter in table}
    return {name: value for name, value in values.items() if value is not None}


class UnreadableSignature(TypeError):
    """Python cannot tell the parameters of a callable, as of one that is written in C++."""


@dataclass(frozen=True)
class Binder(Generic[T]):
    """A table of parameters, and which of them one callable takes.

    `what` is the callable's word in reasons. `knobs` are parameters with defaults that are not in the
    table: nobody passes them. `names` are those of all parameters, `arrays` of those passed by place.
    """

    table: tuple[Parameter[T], ...]
    taken: frozenset[str]
    what: str = "function"
    knobs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        name: str,
        table: tuple[Parameter[T], ...],
        arrays: Sequence[str] | None,
        what: str = "function",
        rest: Collection[str] = (),
    ) -> Binder[T]:
        """Read the signature of a callable whose `arrays` are passed by place; if None, they are all
        parameters of the callable that are passed by place and have no default.

        `rest` are the parameters that any keyword (`**keywords`) stands for. Raises TypeError if the
        callable takes fewer arrays or requires other parameters, UnreadableSignature if there is no
        signature.
        """
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise UnreadableSignature(
                f"cannot read the signature of {function!r}: {error}; wrap it in a function that has one"
            ) from error
        known = [parameter.name for parameter in table]
        parameters = list(signature.parameters.values())
        kinds = {p.kind for p in parameters}
        places = [p for p in parameters if p.kind in BY_PLACE]
        if arrays is None:
            arrays = [p.name for p in places if p.default is p.empty and p.name not in known]
        others = [*places[len(arrays) :], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        named = [p.name for p in others if p.kind is not p.POSITIONAL_ONLY and p.name in known]
        unmet = any(p.default is p.empty and p.name not in named for p in others)
        if unmet or (len(places) < len(arrays) and inspect.Parameter.VAR_POSITIONAL not in kinds):
            raise TypeError(
                f"{name}{signature} does not fit; expected {name}({shown(arrays, known)})"
                f"{', any of the keywords' if known else ''}"
            )
        more = rest if inspect.Parameter.VAR_KEYWORD in kinds else ()
        return cls(
            table,
            frozenset([*named, *more]),
            what,
            tuple(p.name for p in others if p.name not in named),
            tuple(p.name for p in parameters),
            tuple(arrays),
        )

    @cached_property
    def lacking(self) -> dict[str, str]:
        """The features that the callable lacks, with the reason."""
        serving: dict[str, list[str]] = {}
        for parameter in self.table:
            for feature in parameter.features:
                serving.setdefault(feature, []).append(parameter.name)
        return {
            feature: f"the {self.what} has {'neither ' if names[1:] else 'no parameter '}"
            + " nor ".join(names)
            for feature, names in serving.items()
            if not self.taken & {*names}
        }

    def bind(self, call: T, needs: Iterable[str] = ()) -> dict[str, Any]:
        """The arguments that the call asks for and the callable takes.

        An argument that one of the features `needs` depends on is passed even if the callable lacks it:
        then Python refuses the call.
        """
        unmet = self.lacking.keys() & {*needs}
        passed = {}
        for parameter in self.table:
            taken = parameter.name in self.taken
            if parameter.unless in self.taken or not (taken or unmet & {*parameter.features}):
                continue
            value = parameter.value(call)
            if value is not None or (taken and parameter.told):
                passed[parameter.name] = value
        return passed

    def with_one_more(self) -> dict[str, Binder[T]]:
        """The binder as if the callable took one parameter more, by the parameter's name."""
        names = [p.name for p in self.table if p.name not in self.taken]
        return {name: replace(self, taken=self.taken | {name}) for name in names}

    def check_names(self, who: str) -> None:
        """Raise UsageError if a knob is nearly called like a parameter that is not taken."""
        free = [p.name for p in self.table if p.name not in self.taken]
        near = {knob: get_close_matches(knob, free, 1) for knob in self.knobs}
        misspelt = [knob for knob, names in near.items() if names]
        if misspelt:
            raise UsageError(
                f"{self.what} {who} has parameters that are never passed: {', '.join(misspelt)}; did "
                f"you mean {', '.join(dict.fromkeys(chain(*near.values())))}? Passed are "
                f"{', '.join(p.name for p in self.table)}, by name. What nobody passes is not judged: "
                "rename it, or say --allow-unused"
            )

    @property
    def remarks(self) -> tuple[str, ...]:
        """What a person should know of the knobs."""
        knobs = ", ".join(self.knobs)
        return (f"never passed, so that the default is judged: {knobs}",) if knobs else ()

    @property
    def argument_names(self) -> tuple[str, ...]:
        """What the arguments of the callable are called, each once."""
        return tuple(dict.fromkeys([*self.arrays, *self.names, *sorted(self.taken)]))


def shown(arrays: Iterable[str], keywords: Sequence[str]) -> str:
    """Arrays and keywords as a signature shows them."""
    return ", ".join([*arrays, *(["*", *(f"{n}=..." for n in keywords)] if keywords else [])])


def ends_in(thing: Callable[..., Any]) -> Callable[..., Any]:
    """What a call of a function or a module ends in: torch's `forward` or Keras' `call`, whichever says
    what it takes, if the signature of the thing itself takes anything; else the thing."""
    if not _takes_anything(thing):
        return thing
    module = getattr(thing, "_orig_mod", thing)  # what torch.compile has compiled
    inner = (getattr(module, name, None) for name in ("forward", "call"))
    return next((f for f in inner if callable(f) and not _takes_anything(f)), thing)


def _takes_anything(thing: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(thing).parameters.values()
    except (TypeError, ValueError):
        return True
    return all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


__all__ = ["Binder", "Parameter", "UnreadableSignature", "arguments", "ends_in"]
