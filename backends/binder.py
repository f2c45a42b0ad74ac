"""The binder: the parameters of a user's callable, and the arguments passed to it.

Each kind of callable (a function with a framework's signature, a merge, the factory of a layer, ...) has
a table of `Parameter`. A `Binder` compares the table with one callable's signature. It gives the lacking
features, misspelt names, and the arguments of a call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar, Generic, TypeVar

from attention_conformance.backends.declared import UsageError

T = TypeVar("T")

BY_PLACE = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
"""The kinds of positional parameters."""


CALL_METHODS = ("forward", "call", "__call__")
"""The methods by which an object is called; their signature is that of its calls."""


def no_argument(call: Any) -> None:
    """Returns None: the argument of a parameter that no call passes."""


@dataclass(frozen=True)
class Parameter(Generic[T]):
    """One parameter that a user's callable may have. It is passed by keyword.

    - `features`: a callable lacks a feature if it takes no parameter that serves the feature
    - `value(call)`: the argument; None if the call does not need the parameter
    - `passes_none`: None is also passed
    - `unless`: nothing is passed if the callable takes the parameter of this name
    - `names`: other common names of the parameter
    - `neutral(call)`: the argument in a call that does not need a parameter without a default
    - `word`: the name of the row in its table, if `name` is the callable's name for it
    """

    name: str
    features: tuple[str, ...] = ()
    value: Callable[[T], Any] = no_argument
    passes_none: bool = False
    unless: str = ""
    names: tuple[str, ...] = ()
    neutral: Callable[[T], Any] = no_argument
    word: str = ""

    @property
    def every_name(self) -> tuple[str, ...]:
        """The row's name and its other names."""
        return (self.name, *self.names)

    def under(self, name: str, required: bool = False) -> Parameter[T]:
        """Returns the row under the name that a callable has for it. A `required` parameter, which has no
        default, is also passed None."""
        passes_none = self.passes_none or required
        word = self.word or self.name
        return replace(self, name=name, names=(), word=word, passes_none=passes_none)


class UnreadableSignature(TypeError):
    """Python cannot read the signature of a callable, for example one written in C++."""


@dataclass(frozen=True)
class Binder(Generic[T]):
    """A table of parameters, and the parameters of one callable.

    - `taken`: the names in the table that the callable takes
    - `what`: the word for the callable in messages
    - `knobs`: parameters that are not in the table; the suite never passes them
    - `names`: all parameters of the callable; `arrays`: its positional arrays
    """

    table: tuple[Parameter[T], ...]
    taken: frozenset[str]
    what: str = "function"
    knobs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    arrays: tuple[str, ...] = ()
    ways_out: ClassVar[str] = "rename it, or use --allow-unused"

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        name: str,
        table: tuple[Parameter[T], ...],
        arrays: Sequence[str] | None,
        what: str = "function",
    ) -> Binder[T]:
        """Returns the binder of a callable, whose parameters may have any of the names of a row.

        `arrays` are passed by position. None stands for all positional parameters that have no default
        and are not in the table. Raises TypeError if the callable takes fewer arrays or requires other
        parameters, UnreadableSignature if its signature cannot be read.
        """
        signature = signature_of(function)
        parameters = list(signature.parameters.values())
        table = tuple(rows_under_own_names(table, parameters))
        row_names = [parameter.name for parameter in table]
        kinds = {p.kind for p in parameters}
        places = [p for p in parameters if p.kind in BY_PLACE]
        if arrays is None:
            arrays = [p.name for p in places if p.default is p.empty and p.name not in row_names]
        keywords = [*places[len(arrays) :], *(p for p in parameters if p.kind is p.KEYWORD_ONLY)]
        taken_names = [
            p.name for p in keywords if p.kind is not p.POSITIONAL_ONLY and p.name in row_names
        ]
        unmet = any(p.default is p.empty and p.name not in taken_names for p in keywords)
        if unmet or (len(places) < len(arrays) and inspect.Parameter.VAR_POSITIONAL not in kinds):
            raise TypeError(
                f"{name}{signature} does not fit; expected {name}({signature_text(arrays, row_names)})"
                f"{', any of the keywords' if row_names else ''}"
            )
        return cls(
            table,
            frozenset(taken_names),
            what,
            tuple(p.name for p in keywords if p.name not in taken_names),
            tuple(p.name for p in parameters),
            tuple(arrays),
        )

    @cached_property
    def lacking(self) -> dict[str, str]:
        """The features that the callable lacks, each with the reason."""
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

    def serving(self, feature: str) -> tuple[str, ...]:
        """Returns the names of the callable's parameters that serve a feature."""
        rows = (row for row in self.table if row.name in self.taken)
        return tuple(row.name for row in rows if feature in row.features)

    def name_of(self, word: str) -> str:
        """Returns the callable's name for the row `word`; "" if it takes no such parameter."""
        rows = (row for row in self.table if row.name in self.taken)
        return next((row.name for row in rows if row.word == word), "")

    def without(self, word: str) -> Binder[T]:
        """Returns the binder that never passes the row `word`."""
        names = {row.name for row in self.table if row.word == word}
        return replace(self, taken=self.taken - names)

    def bind(self, call: T, needs: Iterable[str] = ()) -> dict[str, Any]:
        """Returns the arguments, by name, that the call needs and the callable takes.

        An argument that serves one of the features `needs` is passed even if the callable does not take
        it: then Python refuses the call.
        """
        unmet = self.lacking.keys() & {*needs}
        passed = {}
        for parameter in self.table:
            taken = parameter.name in self.taken
            if parameter.unless in self.taken or not (taken or unmet & {*parameter.features}):
                continue
            value = parameter.value(call)
            if value is not None or (taken and parameter.passes_none):
                passed[parameter.name] = value
        return passed

    def with_one_more(self) -> dict[str, Binder[T]]:
        """Returns by the names of parameters that the callable does not take: its binder with that
        parameter."""
        names = [p.name for p in self.table if p.name not in self.taken]
        return {name: replace(self, taken=self.taken | {name}) for name in names}

    def check_names(self, who: str) -> None:
        """Raise UsageError if a knob's name is similar to that of a parameter that is not taken. `who`:
        the callable's name for the message."""
        untaken = [p.name for p in self.table if p.name not in self.taken]
        matches = {knob: get_close_matches(knob, untaken, 1) for knob in self.knobs}
        misspelt = [knob for knob, names in matches.items() if names]
        if misspelt:
            raise UsageError(
                f"{self.what} {who} has parameters that are never passed: {', '.join(misspelt)}; did "
                f"you mean {', '.join(dict.fromkeys(chain(*matches.values())))}? Passed are "
                f"{', '.join(p.name for p in self.table)}, by name. A parameter that is never passed is "
                f"not judged: {self.ways_out}"
            )

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks for the user on the knobs; () if there are none."""
        knobs = ", ".join(self.knobs)
        return (f"never passed, so that the default is judged: {knobs}",) if knobs else ()

    @property
    def argument_names(self) -> tuple[str, ...]:
        """The names of the callable's arguments, each once."""
        return tuple(dict.fromkeys([*self.arrays, *self.names, *sorted(self.taken)]))


def rows_under_own_names(
    table: Iterable[Parameter[T]], parameters: Sequence[inspect.Parameter]
) -> Iterator[Parameter[T]]:
    """Yields the rows under the names that a callable with these parameters has for them. A row that the
    callable lacks has its own name."""
    for row in table:
        named = [p for p in parameters if p.name in row.every_name]
        for parameter in named:
            yield row.under(parameter.name, required(parameter))
        if not named:
            yield row.under(row.name)


def required(parameter: inspect.Parameter) -> bool:
    """True for a parameter without a default."""
    return parameter.default is parameter.empty


def signature_text(arrays: Iterable[str], keywords: Sequence[str]) -> str:
    """Returns arrays and keywords as the text of a signature: "query, *, scale=..."."""
    return ", ".join([*arrays, *(["*", *(f"{n}=..." for n in keywords)] if keywords else [])])


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Returns the signature by which a callable is called. That is the signature of `forward` or `call`
    for a module, of the constructor for a class, and of `forward`, by position, for `apply` of a
    `torch.autograd.Function`. Raises UnreadableSignature."""
    bound_to = getattr(function, "__self__", None)
    is_apply = getattr(function, "__name__", "") == "apply" and hasattr(bound_to, "backward")
    signature_owner: Any = (
        function if isinstance(function, type) else callable_with_signature(function)
    )
    if isinstance(function, type) and type(function).__call__ is not type.__call__:
        # The metaclass makes the instances, and may take anything, as that of Flax NNX.
        signature_owner = partial(signature_owner.__init__, None)
    try:
        signature = inspect.signature(
            bound_to.forward if is_apply and bound_to else signature_owner
        )
    except (TypeError, ValueError) as error:
        raise UnreadableSignature(
            f"cannot read the signature of {function!r}: {error}; wrap it in a function that has one"
        ) from error
    if not is_apply:
        return signature
    _, *parameters = signature.parameters.values()  # without the context
    return inspect.Signature([p.replace(kind=p.POSITIONAL_ONLY) for p in parameters])


def signature_of_instances(kind: type) -> inspect.Signature:
    """Returns the signature by which instances of a class are called. Raises UnreadableSignature."""
    methods = (vars(base).get(name) for base in kind.__mro__ for name in CALL_METHODS)
    method = next((base for base in methods if inspect.isfunction(base)), None)
    if method is None:
        raise UnreadableSignature(
            f"{kind.__name__} has no method {', '.join(CALL_METHODS)} in Python"
        )
    _, *parameters = inspect.signature(method).parameters.values()  # without self
    return inspect.Signature(parameters)


def callable_with_signature(target: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `target`, or if its signature is only `*args, **kwargs`, its method `forward` (torch) or
    `call` (Keras)."""
    if not _takes_anything(target):
        return target
    module = getattr(target, "_orig_mod", target)  # the module inside torch.compile's wrapper
    inner = (getattr(module, name, None) for name in ("forward", "call"))
    return next((f for f in inner if callable(f) and not _takes_anything(f)), target)


def _takes_anything(target: Callable[..., Any]) -> bool:
    """True for a signature of only `*args` and `**kwargs`, or one that Python cannot read."""
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return True
    return all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)
