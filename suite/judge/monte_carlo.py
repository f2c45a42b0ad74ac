"""Spread: what random roundings do to an answer, and whether an error is more than that.

A bound holds for the worst of all roundings. Most of them cancel: long sums, layers and gradients in 16
bits lie at a hundredth of their bounds, and an answer that is off by 1 % may lie within. So the
reference is computed several times with every rounding drawn (`references.rounding.drawn`), in the same
places and of the same sizes as the bound has them, for several draws of the inputs. Two figures of the
errors of an answer are held against these:

- Their size, the root mean square over all elements, relative to that of the drawn errors. The model has
  every rounding that an implementation of the class may make. A key that is dropped out of thousands is
  larger.
- Their part along a direction: the answer itself (a gain), and how the answer moves where one array is
  larger by a factor. Random roundings have hardly any such part. A scale, or a gradient, that is off by a
  part of a per cent has nothing else.

The first is held to `tolerance.rms_limit`, the second, in standard deviations of the drawn errors, to
`tolerance.shift_limit`.

Sources: Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997; Higham, Mary, A new approach to
probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

import references
from references.outputs import Outputs
from references.rounding import NO_ROUNDING, Roundoffs, drawn
from suite.judge.tolerance import rms_limit, shift_limit
from suite.judge.verdict import Deviation, HarnessError
from suite.spec.cache import Cache
from suite.spec.inputs import Inputs
from suite.spec.recipes import generator

DRAWS = 6
"""How many draws of the inputs are asked, in one cell."""

PASSES = 6
"""How often the reference is computed for a draw, with other roundings."""


@dataclass(frozen=True)
class RoundingSamples:
    """What is expected of one array, and its errors (PASSES, n) where roundings are drawn."""

    exact: np.ndarray
    errors: np.ndarray


_CACHE: Cache[dict[str, RoundingSamples]] = Cache(128)
_DIRECTIONS: Cache[dict[str, np.ndarray]] = Cache(128)


def forward_drawn(inputs: Inputs, u: Roundoffs) -> RoundingSamples:
    """The output, where roundings of `u` are drawn."""
    reference = references.of(inputs.operator).forward
    return _drawn(inputs, "forward", lambda u: reference(inputs, u), u, ("output",))["output"]


def gradients_drawn(
    inputs: Inputs, cotangent: np.ndarray, u: Roundoffs
) -> dict[str, RoundingSamples]:
    """The gradients for a cotangent of the output, likewise."""
    reference = references.of(inputs.operator).vjp
    of = ("vjp", cotangent.tobytes())
    return _drawn(inputs, of, lambda u: reference(inputs, cotangent, u), u)


def directions(inputs: Inputs) -> dict[str, np.ndarray]:
    """How the output moves where one array is larger by a factor, by array: by all of the array."""
    reference = references.of(inputs.operator)
    names = [name for name in inputs.arrays if name not in inputs.operator.array_kinds.constants]

    def moved() -> dict[str, np.ndarray]:
        along = {n: reference.jvp(inputs, {n: inputs.arrays[n]}, NO_ROUNDING) for n in names}
        return {n: outputs.arrays["output"].value for n, outputs in along.items()}

    return _DIRECTIONS.get(inputs.digest, moved)


def _drawn(
    inputs: Inputs, of: Hashable, reference: Callable[[Roundoffs], Outputs], u: Roundoffs,
    names: tuple[str, ...] = (),
) -> dict[str, RoundingSamples]:  # fmt: skip
    """What is drawn of a reference, by array; `of` tells it from others of the same inputs."""

    def compute() -> dict[str, RoundingSamples]:
        exact = reference(NO_ROUNDING).arrays
        passes: dict[str, list[np.ndarray]] = {name: [] for name in names or exact}
        for n in range(PASSES):
            with drawn(generator(f"roundings/{inputs.digest.hex()}", n)), np.errstate(all="ignore"):
                arrays = reference(u).arrays
            for name, errors in passes.items():
                errors.append((arrays[name].value - exact[name].value).ravel())
        return {
            name: RoundingSamples(exact[name].value, np.stack(errors).astype(np.float64))
            for name, errors in passes.items()
        }

    return _CACHE.get((inputs.digest, of, u), compute)


@dataclass
class ErrorAlong:
    """The part of errors along a direction: theirs, that of the direction itself, and the variance of
    theirs in each draw of the inputs."""

    shift: float = 0.0
    whole: float = 0.0
    variances: list[float] = field(default_factory=list)

    def add(self, error: np.ndarray, drawn: np.ndarray, direction: np.ndarray) -> None:
        self.shift += float(error @ direction)
        self.whole += float(direction @ direction)
        self.variances.append(float(np.square(drawn @ direction).mean()))

    @property
    def deviations(self) -> float:
        """The part of the errors in standard deviations; 0 where the roundings have no such part."""
        variance = sum(self.variances)
        return abs(self.shift) / float(np.sqrt(variance)) if variance else 0.0

    @property
    def limit(self) -> float:
        """How many there may be, by the degrees of freedom of the sum of the variances (Satterthwaite
        1946)."""
        variances = np.array(self.variances)
        return shift_limit(PASSES * float(variances.sum() ** 2 / np.square(variances).sum()))

    @property
    def excess(self) -> float:
        return self.deviations / self.limit if self.deviations else 0.0


class Spread:
    """The errors of one array over draws of the inputs, beside those that were drawn."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.energy = self.expected = self.largest = 0.0
        self.parts: dict[str, ErrorAlong] = {}

    def add(self, got: np.ndarray, drawn: RoundingSamples, along: Mapping[str, np.ndarray]) -> None:
        """Take an answer to one draw of the inputs, and the directions by name, in its shape. Draws count
        alike: what is drawn for each has the size 1."""
        if not np.isfinite(drawn.errors).all():
            raise HarnessError(f"what is drawn of {self.name} is not finite: the case is ill-posed")
        if not np.isfinite(got).all():
            raise Deviation("non-finite", f"{self.name}, one of {DRAWS} draws, is not finite")
        size = np.sqrt(np.square(drawn.errors).sum() / PASSES)
        unit = 1 / size if size else 1.0
        flat = unit * (got.reshape(drawn.exact.shape) - drawn.exact).ravel().astype(np.float64)
        errors = unit * drawn.errors
        self.energy += float(flat @ flat)
        self.expected += float(np.square(errors).sum()) / PASSES
        # Errors that go together count as one: the largest such part of one draw, or more than it.
        self.largest = max(self.largest, float(np.linalg.eigvalsh(errors @ errors.T)[-1]) / PASSES)
        for name, direction in along.items():
            part = self.parts.setdefault(name, ErrorAlong())
            part.add(flat, errors, unit * direction.ravel().astype(np.float64))

    @property
    def rms(self) -> float:
        """The root mean square of the errors over that of the drawn ones; 0 where there are none."""
        if not self.energy:
            return 0.0
        return float(np.sqrt(self.energy / self.expected)) if self.expected else np.inf

    def judge(self) -> None:
        """Raise Deviation "value" where errors are larger than random ones, or go with a direction."""
        independent = self.expected / self.largest if self.largest else 1.0
        limit = rms_limit(independent)
        if self.rms > limit:
            raise Deviation(
                "value",
                f"{self.name}, {DRAWS} draws: errors are {self.rms:.3g} times as large as roundings make "
                f"them, at most {limit:.3g} where {independent:.0f} are independent: they are systematic",
            )
        name, part = max(
            self.parts.items(), key=lambda item: item[1].excess, default=("", ErrorAlong())
        )
        if part.excess > 1:
            raise Deviation(
                "value",
                f"{self.name}, {DRAWS} draws: errors go with {name}, as if that were off by "
                f"{100 * part.shift / part.whole:.2g} %: {part.deviations:.3g} standard deviations of "
                f"what roundings make, at most {part.limit:.3g}: they are systematic",
            )
