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
  `tolerance.shift_limit`. Random roundings have hardly any such part. The errors of a scale or gradient
  that is off by a part of a per cent have no other part.

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
from attention_conformance.suite.judge.verdict import HarnessError, WrongAnswer
from attention_conformance.suite.spec.cache import Cache
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.recipes import generator

DRAWS = 6
"""The number of draws of the inputs in one cell."""

PASSES = 6
"""The number of reference computations for each draw, with different random roundings."""


@dataclass(frozen=True)
class RoundingSamples:
    """Samples of rounding errors of one array with n elements.

    - `exact`: its values without rounding, in its own shape
    - `errors`: float64 (PASSES, n), one row per random rounding
    """

    exact: np.ndarray
    errors: np.ndarray


_CACHE: Cache[dict[str, RoundingSamples]] = Cache(128)
_DIRECTIONS: Cache[dict[str, np.ndarray]] = Cache(128)


def forward_samples(inputs: Inputs, u: Roundoffs) -> RoundingSamples:
    """Returns samples of the output's errors, with random roundings of the sizes `u`."""
    reference = references.find(inputs.operator).forward
    return _samples(inputs, "forward", lambda u: reference(inputs, u), u, ("output",))["output"]


def gradient_samples(
    inputs: Inputs, cotangent: np.ndarray, u: Roundoffs
) -> dict[str, RoundingSamples]:
    """Returns samples of the errors of the gradients, by array, for a cotangent of the output. Random
    roundings have the sizes `u`."""
    reference = references.find(inputs.operator).vjp
    reference_key = ("vjp", cotangent.tobytes())
    return _samples(inputs, reference_key, lambda u: reference(inputs, cotangent, u), u)


def scaling_directions(inputs: Inputs) -> dict[str, np.ndarray]:
    """Returns, by array, the JVP of the output with the array itself as the tangent. This is the change
    of the output if the whole array is scaled."""
    reference = references.find(inputs.operator)
    names = [name for name in inputs.arrays if name not in inputs.operator.array_kinds.constants]

    def jvp_by_array() -> dict[str, np.ndarray]:
        jvps = {n: reference.jvp(inputs, {n: inputs.arrays[n]}, NO_ROUNDING) for n in names}
        return {n: outputs.arrays["output"].value for n, outputs in jvps.items()}

    return _DIRECTIONS.get(inputs.digest, jvp_by_array)


def _samples(
    inputs: Inputs, reference_key: Hashable, reference: Callable[[Roundoffs], Outputs], u: Roundoffs,
    names: tuple[str, ...] = (),
) -> dict[str, RoundingSamples]:  # fmt: skip
    """Returns samples of the errors of `reference(u)`, by array, for the arrays `names`, by default all.
    Results are cached by inputs, `reference_key` and `u`."""

    def compute() -> dict[str, RoundingSamples]:
        exact = reference(NO_ROUNDING).arrays
        errors_by_name: dict[str, list[np.ndarray]] = {name: [] for name in names or exact}
        for n in range(PASSES):
            with (
                random_roundings(generator(f"roundings/{inputs.digest.hex()}", n)),
                np.errstate(all="ignore"),
            ):
                arrays = reference(u).arrays
            for name, errors in errors_by_name.items():
                errors.append((arrays[name].value - exact[name].value).ravel())
        return {
            name: RoundingSamples(exact[name].value, np.stack(errors).astype(np.float64))
            for name, errors in errors_by_name.items()
        }

    return _CACHE.get((inputs.digest, reference_key, u), compute)


@dataclass
class ErrorAlong:
    """Errors along one direction, over draws of the inputs.

    - `projection`: the sum of error . direction
    - `squared_length`: the sum of direction . direction
    - `variances`: for each draw the variance of random errors . direction
    """

    projection: float = 0.0
    squared_length: float = 0.0
    variances: list[float] = field(default_factory=list)

    def add(self, error: np.ndarray, random_errors: np.ndarray, direction: np.ndarray) -> None:
        self.projection += float(error @ direction)
        self.squared_length += float(direction @ direction)
        self.variances.append(float(np.square(random_errors @ direction).mean()))

    @property
    def in_deviations(self) -> float:
        """The projection in standard deviations of random errors; 0 if these have no projection."""
        variance = sum(self.variances)
        return abs(self.projection) / float(np.sqrt(variance)) if variance else 0.0

    @property
    def limit(self) -> float:
        """The limit of `in_deviations`, by the degrees of freedom of the sum of variances (Satterthwaite
        1946)."""
        variances = np.array(self.variances)
        return shift_limit(PASSES * float(variances.sum() ** 2 / np.square(variances).sum()))

    @property
    def excess(self) -> float:
        """`in_deviations` relative to the limit: above 1 the errors are systematic."""
        return self.in_deviations / self.limit if self.in_deviations else 0.0


class ErrorStatistics:
    """The errors of one array over several draws of the inputs, compared with random errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.squared_error = self.expected = self.largest_common = 0.0
        self.by_direction: dict[str, ErrorAlong] = {}

    def add(
        self, got: np.ndarray, samples: RoundingSamples, along: Mapping[str, np.ndarray]
    ) -> None:
        """Add `got`, the answer for one draw of the inputs. `along`: directions by name, in its shape.
        Errors are scaled so that the random errors of every draw have size 1. Raises WrongAnswer
        "non-finite", and HarnessError if a sample is not finite."""
        if not np.isfinite(samples.errors).all():
            raise HarnessError(f"what is drawn of {self.name} is not finite: the case is ill-posed")
        if not np.isfinite(got).all():
            raise WrongAnswer("non-finite", f"{self.name}, one of {DRAWS} draws, is not finite")
        random_size = np.sqrt(np.square(samples.errors).sum() / PASSES)
        unit = 1 / random_size if random_size else 1.0
        error = unit * (got.reshape(samples.exact.shape) - samples.exact).ravel().astype(np.float64)
        random_errors = unit * samples.errors
        self.squared_error += float(error @ error)
        self.expected += float(np.square(random_errors).sum()) / PASSES
        # Correlated errors count as one. No part of them exceeds the largest eigenvalue.
        common = float(np.linalg.eigvalsh(random_errors @ random_errors.T)[-1]) / PASSES
        self.largest_common = max(self.largest_common, common)
        for name, direction in along.items():
            error_along = self.by_direction.setdefault(name, ErrorAlong())
            error_along.add(error, random_errors, unit * direction.ravel().astype(np.float64))

    @property
    def rms(self) -> float:
        """The root mean square of the errors, relative to the random errors; 0 if there are none."""
        if not self.squared_error:
            return 0.0
        return float(np.sqrt(self.squared_error / self.expected)) if self.expected else np.inf

    def judge(self) -> None:
        """Raise WrongAnswer "value" if errors are larger than random errors, or follow a direction."""
        count = self.expected / self.largest_common if self.largest_common else 1.0
        limit = rms_limit(count)
        if self.rms > limit:
            raise WrongAnswer(
                "value",
                f"{self.name}, {DRAWS} draws: errors are {self.rms:.3g} times as large as roundings make "
                f"them, at most {limit:.3g} where {count:.0f} are independent: they are systematic",
            )
        name, worst = max(
            self.by_direction.items(), key=lambda item: item[1].excess, default=("", ErrorAlong())
        )
        if worst.excess > 1:
            percent = 100 * worst.projection / worst.squared_length
            raise WrongAnswer(
                "value",
                f"{self.name}, {DRAWS} draws: errors go with {name}, as if that were off by "
                f"{percent:.2g} %: {worst.in_deviations:.3g} standard deviations of what "
                f" roundings make, at most {worst.limit:.3g}: they are systematic",
            )
