"""Monte Carlo: the errors of random roundings, and whether an answer's errors are larger or follow a
direction.

A bound covers the worst case of all roundings. Most roundings cancel: long sums, layers and gradients in
16 bits have errors of a hundredth of their bounds, and an answer that is off by 1 % may stay within. So
the reference is computed several times with random roundings (`references.rounding.random_roundings`),
in the places and of the sizes that the bound assumes, for several draws of the inputs. Two figures of an
answer's errors are compared with these:

- Size: the root mean square over all elements, relative to that of the random errors. The limit is
  `tolerance.rms_limit`. The model has every rounding that an implementation of the class may make. A key
  that is dropped out of thousands has a larger error.
- Direction: the part of the errors along the answer itself (a gain), and along the change of the answer
  if one array is scaled. The limit, in standard deviations of the random errors, is
  `tolerance.shift_limit`. Random roundings have hardly any such part. A scale or gradient that is off by
  a part of a per cent has nothing else.

Sources: Parker, Monte Carlo Arithmetic, UCLA CSD-970002, 1997; Higham, Mary, A new approach to
probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from attention_conformance import references
from attention_conformance.references.outputs import Outputs
from attention_conformance.references.rounding import NO_ROUNDING, Roundoffs, random_roundings
from attention_conformance.suite.judge.tolerance import rms_limit, shift_limit
from attention_conformance.suite.judge.verdict import Deviation, HarnessError
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.recipes import generator

DRAWS = 6
"""The number of draws of the inputs in one cell."""

PASSES = 6
"""The number of reference computations for each draw, with different random roundings."""


@dataclass(frozen=True)
class RoundingSamples:
    """The expected values of one array, and its errors (PASSES, n) with random roundings."""

    exact: np.ndarray
    errors: np.ndarray


_CACHE: Cache[dict[str, RoundingSamples]] = Cache(128)
_DIRECTIONS: Cache[dict[str, np.ndarray]] = Cache(128)


def forward_drawn(inputs: Inputs, u: Roundoffs) -> RoundingSamples:
    """Samples of the output with random roundings of size `u`."""
    reference = references.find(inputs.operator).forward
    return _drawn(inputs, "forward", lambda u: reference(inputs, u), u, ("output",))["output"]


def gradients_drawn(
    inputs: Inputs, cotangent: np.ndarray, u: Roundoffs
) -> dict[str, RoundingSamples]:
    """Samples of the gradients for a cotangent of the output, likewise."""
    reference = references.find(inputs.operator).vjp
    which = ("vjp", cotangent.tobytes())
    return _drawn(inputs, which, lambda u: reference(inputs, cotangent, u), u)


def directions(inputs: Inputs) -> dict[str, np.ndarray]:
    """The JVP of the output along each array itself, by array: the change of the output if the whole
    array is scaled."""
    reference = references.find(inputs.operator)
    names = [name for name in inputs.arrays if name not in inputs.operator.array_kinds.constants]

    def moved() -> dict[str, np.ndarray]:
        along = {n: reference.jvp(inputs, {n: inputs.arrays[n]}, NO_ROUNDING) for n in names}
        return {n: outputs.arrays["output"].value for n, outputs in along.items()}

    return _DIRECTIONS.get(inputs.digest, moved)


def _drawn(
    inputs: Inputs, which: Hashable, reference: Callable[[Roundoffs], Outputs], u: Roundoffs,
    names: tuple[str, ...] = (),
) -> dict[str, RoundingSamples]:  # fmt: skip
    """Samples of a reference, by array; `which` says which reference of the same inputs it is."""

    def compute() -> dict[str, RoundingSamples]:
        exact = reference(NO_ROUNDING).arrays
        passes: dict[str, list[np.ndarray]] = {name: [] for name in names or exact}
        for n in range(PASSES):
            with (
                random_roundings(generator(f"roundings/{inputs.digest.hex()}", n)),
                np.errstate(all="ignore"),
            ):
                arrays = reference(u).arrays
            for name, errors in passes.items():
                errors.append((arrays[name].value - exact[name].value).ravel())
        return {
            name: RoundingSamples(exact[name].value, np.stack(errors).astype(np.float64))
            for name, errors in passes.items()
        }

    return _CACHE.get((inputs.digest, which, u), compute)


@dataclass
class ErrorAlong:
    """Errors along a direction: the answer's part, the squared length of the direction, and the variance
    of random errors in each draw of the inputs."""

    shift: float = 0.0
    whole: float = 0.0
    variances: list[float] = field(default_factory=list)

    def add(self, error: np.ndarray, drawn: np.ndarray, direction: np.ndarray) -> None:
        self.shift += float(error @ direction)
        self.whole += float(direction @ direction)
        self.variances.append(float(np.square(drawn @ direction).mean()))

    @property
    def deviations(self) -> float:
        """The answer's part in standard deviations; 0 if random errors have no such part."""
        variance = sum(self.variances)
        return abs(self.shift) / float(np.sqrt(variance)) if variance else 0.0

    @property
    def limit(self) -> float:
        """The largest number of standard deviations, by the degrees of freedom of the sum of variances
        (Satterthwaite 1946)."""
        variances = np.array(self.variances)
        return shift_limit(PASSES * float(variances.sum() ** 2 / np.square(variances).sum()))

    @property
    def excess(self) -> float:
        return self.deviations / self.limit if self.deviations else 0.0


class Spread:
    """The errors of one array over draws of the inputs, beside random errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.energy = self.expected = self.largest = 0.0
        self.parts: dict[str, ErrorAlong] = {}

    def add(self, got: np.ndarray, drawn: RoundingSamples, along: Mapping[str, np.ndarray]) -> None:
        """Add the answer to one draw of the inputs, and the directions by name, in the answer's shape.
        Every draw has the same weight: its random errors have size 1."""
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
        """The root mean square of the errors, relative to the random errors; 0 if there are none."""
        if not self.energy:
            return 0.0
        return float(np.sqrt(self.energy / self.expected)) if self.expected else np.inf

    def judge(self) -> None:
        """Raise Deviation "value" if errors are larger than random errors, or follow a direction."""
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
