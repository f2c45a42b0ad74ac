"""A user's function or layer in the parent, by what the child says of it."""

from __future__ import annotations

import inspect
from typing import Any

from backends.user.layer import ObservedLayer, UserLayer
from suite.run.isolation.wire import checked, checked_name
from suite.spec.case import Case
from suite.spec.text import printable


class Signature:
    """A function in this process that has a signature and a name, and is never called. `layer` is what
    the child says of a layer that the function makes."""

    layer: Any = None

    def __init__(self, function: Any, name: str, parameters: Any) -> None:
        self._function = function
        self.__name__ = name
        if parameters is not None:
            kinds = inspect._ParameterKind.__members__
            self.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(
                        checked_name(n, "a parameter"), kinds[checked_name(kind, "a kind")],
                        default=None if has_default else inspect.Parameter.empty,
                    )
                    for n, kind, has_default in parameters
                ]
            )  # fmt: skip

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._function(*arguments, **keywords)


class ToldLayer(UserLayer):
    """A user's layer in the child, by what the child says of it."""

    def observed(self, case: Case) -> ObservedLayer:
        call, switches, takes_parameters, unread = checked(self.judged.layer, list, "a layer")
        errors = {
            frozenset(checked_name(n, "a parameter") for n in checked(names, list, "names")):
                printable(checked(reason, str, "a reason"))
            for names, reason in checked(unread, list, "errors")
        }  # fmt: skip
        return ObservedLayer(
            Signature(self.judged, "", call), checked(switches, bool, "a claim"),
            checked(takes_parameters, bool, "a claim"), errors,
        )  # fmt: skip
