"""Faults of attention with a cache that rotates queries and keys by their positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attention_conformance.backends._numpy import Rounded
from attention_conformance.suite.faults.fault import fault
from attention_conformance.suite.faults.kernels.cached import CachedKernel, Held
from attention_conformance.suite.spec.dtypes import DTYPES, round_to

FAMILY = "rotary"


@fault("values", "`arange(chunk)`; add the length of the cache")
class CachedRotaryAnew(CachedKernel):
    """The positions of a rotation begin at 0 in every chunk."""

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        return np.broadcast_to(self.depths(held, count), (len(held.totals), count))


@fault("values", "`offset` for the keys alone; rotate queries by the same positions")
class CachedRotaryOfKeysAlone(CachedKernel):
    """Keys are rotated by their positions, and queries by their places in the chunk."""

    def query_turns(self, held: Held, count: int) -> np.ndarray:
        return np.broadcast_to(self.depths(held, count), (len(held.totals), count))


@fault("values", "`offset` read after the update of the cache, or a view of it that moves on")
class CachedRotaryOfQueriesLater(CachedKernel):
    """Queries are rotated by positions behind their chunk."""

    def query_turns(self, held: Held, count: int) -> np.ndarray:
        return self.joining(held, count) + count


@fault("values", "the slot of a token for its position; they differ once the ring went round")
class CachedRotaryOfSlots(CachedKernel):
    """Positions of a rotation begin at 0 again once the ring went round."""

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        return self.joining(held, count) % held.slots


@dataclass
class HeldCounting(Held):
    """A cache that counts all tokens that ever arrived."""

    arrived: int = 0


@fault("values", "an offset that grows at every chunk; a rollback and a reset move it back")
class CachedRotaryCountsOn(CachedKernel):
    """The positions of a rotation count tokens that were taken back, too."""

    holds = HeldCounting

    def crop(self, state: Held, count: int, *samples: Rounded) -> Held:
        assert isinstance(state, HeldCounting)
        state.arrived += count
        return super().crop(state, count, *samples)

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        assert isinstance(held, HeldCounting)
        return self.joining(held, count) + held.arrived


@fault("values", "`lengths.max()` as offset of all samples; each has its own")
class CachedRotaryOfTheLongest(CachedKernel):
    """The positions of a rotation begin at the length of the longest sample."""

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        return np.broadcast_to(held.total + self.depths(held, count), (len(held.totals), count))


@fault("values", "positions of queries without their left padding, and of keys with it")
class CachedRotaryPaddedOnce(CachedKernel):
    """Positions of queries count from behind the left padding, and those of keys from its beginning."""

    def query_turns(self, held: Held, count: int) -> np.ndarray:
        return self.joining(held, count) - held.padding[:, None]


@fault("values", "`arange(nodes)` for the nodes of a tree; a node stands at its depth")
class CachedRotaryOfNodes(CachedKernel):
    """The nodes of a tree are rotated by their numbers, and not by their depths."""

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        return held.totals[:, None] + np.arange(count)


@fault("values", "keys that are kept rotated, and rotated again when they are read")
class CachedRotatedTwice(CachedKernel):
    """Keys that the cache holds are rotated again when a later chunk attends them."""

    def attend(
        self, held: Held, query: np.ndarray, key: np.ndarray, value: np.ndarray,
        rows: np.ndarray, keys: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        before = key.shape[2] - query.shape[2]
        again = self.rotated(held, key[:, :, :before], np.maximum(keys[:, :before], 0))
        both = np.concatenate([again, key[:, :, before:]], 2)
        return super().attend(held, query, both, value, rows, keys)


@fault(
    "values", "positions of a document for its keys, and of the sample for queries of later chunks"
)
class CachedRotaryOfOneDocument(CachedKernel):
    """Positions of keys count from the beginning of their document, and those of queries do not."""

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        assert held.begins is not None
        return self.joining(held, count) - held.begins * (held.padding[:, None] == 0)

    def query_turns(self, held: Held, count: int) -> np.ndarray:
        return self.joining(held, count)


@fault("values", "`10000.0` in place of the argument")
class CachedRotaryBaseIgnored(CachedKernel):
    """The base of the rotation's frequencies is always 10000."""

    def rotated(self, held: Held, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        case = held.inputs.case
        usual = replace(case, options=tuple(o for o in case.options if o[0] != "base"))
        inputs = replace(held.inputs, case=usual)
        return super().rotated(replace(held, inputs=inputs), x, positions)


@fault("values", "`arange(n, dtype=x.dtype)`; bfloat16 holds no odd number above 256")
class CachedRotaryOfRoundedPositions(CachedKernel):
    """Positions of a rotation are rounded to bfloat16."""

    def key_turns(self, held: Held, count: int) -> np.ndarray:
        return round_to(super().key_turns(held, count).astype(float), DTYPES["bf16"])
