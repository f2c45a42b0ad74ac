"""Operations that all frameworks have, and the base class of textbook code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from attention_conformance.backends.declared import Declared, Numerics
from attention_conformance.backends.operators import OperatorFunction
from attention_conformance.backends.prepared import PreparedCall
from attention_conformance.backends.protocol import Backend, Implementation
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.vocabulary import NUMERICS


@dataclass(frozen=True)
class Operations:
    """The operations of textbook code in one framework. `@`, `+`, `*`, `/` and slices are the framework's
    own. Operations of the array API have its names; an axis is a positional argument.

    - softmax(x), logsumexp(x): over the last axis; logsumexp at least in float32.
    - fill(x, hidden, number): x, and `number` where `hidden` is True.
    - mask_scores(scores, mask): scores, and -inf or the lowest number where `mask` is False.
    - take(array, indices): slices along the first axis; indices have any rank.
    - put(array, indices, values): a copy with `values` as slices at indices (n,) of the first axis.
    - astype(array, "float32"): the array in a dtype; cast_like(array, other): in the dtype of `other`.
    - number(value, array): a number in the form that combines with the array.
    - arange_like(n, array): 0 to n - 1 in the array's dtype.
    """

    softmax: Callable[[Any], Any]
    fill: Callable[[Any, Any, float], Any]
    mask_scores: Callable[[Any, Any], Any]
    logsumexp: Callable[[Any], Any]
    take: Callable[[Any, Any], Any]
    put: Callable[[Any, Any, Any], Any]
    astype: Callable[[Any, str], Any]
    cast_like: Callable[[Any, Any], Any]
    arange_like: Callable[[int, Any], Any]
    tanh: Callable[[Any], Any]
    sum: Callable[[Any, int], Any]
    mean: Callable[[Any, int], Any]
    max: Callable[[Any, int], Any]
    sqrt: Callable[[Any], Any]
    concat: Callable[[Sequence[Any], int], Any]
    permute_dims: Callable[[Any, tuple[int, ...]], Any]
    reshape: Callable[[Any, tuple[int, ...]], Any]
    repeat: Callable[[Any, int, int], Any]
    broadcast_to: Callable[[Any, tuple[int, ...]], Any]
    cos: Callable[[Any], Any]
    sin: Callable[[Any], Any]
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]
    pow: Callable[[Any, Any], Any]
    clip: Callable[[Any, float, float], Any]
    round: Callable[[Any], Any]
    number: Callable[[float, Any], Any] = lambda value, array: value
    called: Callable[[Implementation, PreparedCall], PreparedCall] = lambda layer, call: call
    """The call of an implementation, as it runs with these operations: unchanged, or compiled."""


def operations_of(namespace: Any, **further: Any) -> Operations:
    """Returns the operations of a framework: those in `namespace` by their names in the array API, and
    `further` ones that the namespace lacks or names differently."""
    names = {field.name for field in fields(Operations)} - {*further, "number", "called"}
    return Operations(**{name: getattr(namespace, name) for name in names}, **further)


class TextbookOperator(OperatorFunction):
    """An operator in operations that all frameworks have.

    Its declared numerics class is `numerics`, that of the framework's textbook attention, but at least
    "eager": the scale is rounded to the dtype, which narrower classes do not allow.
    """

    textbook = True
    has_fixed_numerics = False
    """True if the numerics class of `declared` holds in every framework."""

    def __init__(self, backend: Backend, ops: Operations, numerics: Numerics = "eager") -> None:
        super().__init__(backend, declared=self.declaration(numerics))
        self.ops = ops

    def declaration(self, numerics: Numerics) -> Declared:
        """Returns what the operator declares on a framework whose operations round as `numerics` says: a
        numerics class (`suite.judge.tolerance`), or a class by dtype. A class narrower than "eager"
        becomes "eager". With `has_fixed_numerics` the argument is ignored."""
        if self.has_fixed_numerics:
            return self.declared
        classes = numerics if isinstance(numerics, Mapping) else dict.fromkeys(DTYPES, numerics)
        widened = {name: max(kind, "eager", key=NUMERICS.index) for name, kind in classes.items()}
        return self.declared.but(numerics=widened)

    def through(self, call: PreparedCall) -> PreparedCall:
        return self.ops.called(self, call)
