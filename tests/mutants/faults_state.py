"""Mutants that remember: answers by array or address, what they made of an operand, old contents of a
workspace."""

from __future__ import annotations

import numpy as np

from backends._numpy import Rounded
from tests.mutants.honest_state import Workspace
from tests.mutants.kernel import Call, Kernel
from tests.mutants.registry import mutant


def address(array: Rounded) -> tuple[int, tuple[int, ...]]:
    """Where the values of an array lie, and its shape."""
    return array.values.__array_interface__["data"][0], array.shape


@mutant("stateless")
class AnswersKeptByArrays(Kernel):
    """Answers are kept by the arrays they are of."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        arrays = (call.query, call.key, call.value, call.mask, call.bias)
        # The arrays are kept, too: their identities are nobody else's.
        key = (*map(id, arrays), call.causal)
        if key not in kept:
            kept[key] = (super().compute(call), arrays)
        return kept[key][0]


@mutant("stateless")
class AnswersKeptByAddress(Kernel):
    """Answers are kept by where the query and the key lie in memory."""

    def compute(self, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        key = (address(call.query), address(call.key), call.fmt.name, call.causal)
        return kept.setdefault(key, super().compute(call)).copy()


@mutant("stateless")
class KeysKeptByArray(Kernel):
    """What was made of a key is kept by the array it was made of."""

    def scores(self, query: np.ndarray, key: np.ndarray, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        copy, _ = kept.setdefault(id(call.key), (key.copy(), call.key))
        return super().scores(query, copy, call)


@mutant("stateless")
class MaskKeptByArray(Kernel):
    """A mask is read once, and kept by its array."""

    def masked(self, mask: np.ndarray, call: Call) -> np.ndarray:
        kept = self.__dict__.setdefault("kept", {})
        entry = kept.setdefault(id(call.mask), (super().masked(mask, call).copy(), call.mask))
        return entry[0]


@mutant("stateless")
class WorkspaceNotCleared(Workspace):
    """What an earlier call left in a workspace meets weights of zero."""
