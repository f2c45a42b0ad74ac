"""Limits: the sizes and scales that an implementation supports."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from attention_conformance.suite.spec.sizes import Sizes


@dataclass(frozen=True)
class Limits:
    """Supported sizes and scales; an empty tuple, 0, False and None stand for no limit.

    - `head_sizes`: supported D
    - `value_sizes`: supported Dv; default `head_sizes`
    - `queries`: the only supported Lq
    - `max_length`: greatest Lq and Lk
    - `lengths_multiple_of`: Lq and Lk must be multiples of this number, or of these two
    - `equal_lengths`: Lq must equal Lk
    - `equal_heads`: Hkv must equal H
    - `scales`: smallest and largest scale
    - `page_sizes`: supported slots of a page
    - `samples`, `heads`: 1 if the function has no axis of samples, or none of heads

    Raises ValueError for sizes below 1, for scales in the wrong order, and for limits that no lengths
    meet.
    """

    head_sizes: tuple[int, ...] = ()
    value_sizes: tuple[int, ...] = ()
    queries: int = 0
    max_length: int = 0
    lengths_multiple_of: tuple[int, ...] = ()
    equal_lengths: bool = False
    equal_heads: bool = False
    scales: tuple[float, float] | None = None
    page_sizes: tuple[int, ...] = ()
    samples: int = 0
    heads: int = 0

    def __post_init__(self) -> None:
        for name in ("head_sizes", "value_sizes", "lengths_multiple_of", "page_sizes"):
            if any(not isinstance(n, int) or n < 1 for n in getattr(self, name)):
                raise ValueError(
                    f"{name} are whole numbers from 1 on, got {list(getattr(self, name))}"
                )
        if self.queries < 0:
            raise ValueError(f"queries is a number of queries, got {self.queries}")
        if self.max_length < 0:
            raise ValueError(f"max_length is a number of queries and keys, got {self.max_length}")
        if len(self.lengths_multiple_of) > 2:
            raise ValueError(
                "lengths_multiple_of is one number for queries and keys, or one for each, got "
                f"{list(self.lengths_multiple_of)}"
            )
        of_queries, of_keys = self.steps
        if self.queries % of_queries:
            raise ValueError(
                f"calls of {self.queries} queries are no multiple of {of_queries}; lengths_multiple_of="
                f"1,{of_keys} is about keys alone"
            )
        if self.max_length and self.max_length < max(self.steps):
            raise ValueError(
                f"no length up to {self.max_length} is a multiple of {max(self.steps)}"
            )
        if self.scales is not None and not self.scales[0] <= self.scales[1]:
            raise ValueError(
                f"scales are two numbers, the smallest and the largest one, got {list(self.scales)}"
            )

    @property
    def sizes_of_values(self) -> tuple[int, ...]:
        """The supported Dv; () for no limit."""
        return self.value_sizes or self.head_sizes

    @property
    def steps(self) -> tuple[int, int]:
        """The numbers that Lq and Lk must be multiples of; 1 for any length."""
        multiples = self.lengths_multiple_of or (1,)
        return multiples[0], multiples[-1]

    def refusal(
        self, sizes: Sizes, scale: float | None = None, page_size: int | None = None
    ) -> str | None:
        """Returns the reason why sizes, an explicit scale or pages of `page_size` slots exceed the
        limits. None if they do not."""
        if self.head_sizes and sizes.D not in self.head_sizes:
            return f"declares head sizes {_listed(self.head_sizes)}, and {sizes.D} is none of them"
        if self.sizes_of_values and sizes.Dv not in self.sizes_of_values:
            listed = _listed(self.sizes_of_values)
            return f"declares value sizes {listed}, and {sizes.Dv} is none of them"
        if self.queries and sizes.Lq != self.queries:
            comparison = "more" if sizes.Lq > self.queries else "fewer"
            return f"declares calls of {self.queries} queries, and here are {comparison}"
        longest = max(sizes.Lq, sizes.Lk)
        if self.max_length and longest > self.max_length:
            return f"declares lengths up to {self.max_length}, and {longest} is more"
        of_queries, of_keys = self.steps
        if sizes.Lq % of_queries or sizes.Lk % of_keys:
            return (
                f"declares multiples of {of_queries} queries and {of_keys} keys, and these are "
                f"{sizes.Lq} and {sizes.Lk}"
            )
        if self.equal_lengths and sizes.Lq != sizes.Lk:
            return f"declares equal lengths, and these are {sizes.Lq} and {sizes.Lk}"
        if self.equal_heads and sizes.H != sizes.Hkv:
            return f"declares equal heads, and these are {sizes.H} and {sizes.Hkv}"
        if scale is not None and self.scales and not self.scales[0] <= scale <= self.scales[1]:
            low, high = self.scales
            return f"declares scales from {low:g} to {high:g}, and {scale:g} is none of them"
        if self.samples and sizes.B != self.samples:
            return f"has no axis of samples, and here are {sizes.B} samples"
        if self.heads and sizes.H != self.heads:
            return f"has no axis of heads, and here are {sizes.H} heads"
        if page_size is not None and self.nearest_page_size(page_size) != page_size:
            listed = _listed(self.page_sizes)
            return f"declares pages of {listed} slots, and {page_size} is none of them"
        return None

    def fitted(self, sizes: Sizes, separate: bool = True) -> Sizes:
        """Returns the nearest sizes within the limits. A size outside becomes the next larger valid size,
        or the largest.

        - Dv stays equal to D if the limits allow. With `separate` an unequal Dv stays unequal.
        - The longer of Lq and Lk stays the longer one if the limits allow.
        - Lk of 0 or 1, and Lq of 0, stay unchanged: with one key every row has its value.
        """
        D = _next(sizes.D, self.head_sizes)
        Dv = _next(D if sizes.Dv == sizes.D else sizes.Dv, self.sizes_of_values)
        if separate and Dv == D and sizes.Dv != sizes.D:
            Dv = _next(Dv, tuple(n for n in self.sizes_of_values if n != D))
        Lq, Lk = sizes.Lq and (self.queries or sizes.Lq), sizes.Lk
        of_queries, of_keys = self.steps
        if self.equal_lengths:
            of_keys = lcm(of_queries, of_keys)
            Lk = Lk if Lk < 2 else Lq and (self.queries or max(Lq, Lk))
        Lk = Lk if Lk < 2 else self._multiple(Lk, of_keys)
        Lq = Lk if self.equal_lengths else self._multiple(Lq, of_queries)
        if not self.equal_lengths and 1 < sizes.Lk > sizes.Lq:
            Lk = self._multiple(max(Lk, Lq + 1), of_keys)
        if not self.equal_lengths and not self.queries and sizes.Lq > sizes.Lk:
            Lq = self._multiple(max(Lq, Lk + 1), of_queries)
        B, H = sizes.B and (self.samples or sizes.B), sizes.H and (self.heads or sizes.H)
        Hkv = H if self.equal_heads else min(sizes.Hkv, H)
        return Sizes(B, H, Hkv, Lq, Lk, D, Dv)

    def nearest_scale(self, scale: float | None) -> float | None:
        """Returns the supported scale nearest to `scale`; None for the default scale."""
        if scale is None or self.scales is None:
            return scale
        return min(max(scale, self.scales[0]), self.scales[1])

    def nearest_page_size(self, size: int) -> int:
        """Returns the supported page size nearest to `size`: the next larger one, or the largest."""
        return _next(size, self.page_sizes)

    def _multiple(self, length: int, step: int) -> int:
        """Returns the smallest multiple of `step` that is at least `length`; with `max_length` at most
        its largest multiple."""
        multiple = -(-length // step) * step
        return min(multiple, self.max_length // step * step) if self.max_length else multiple


ANY = Limits()
"""No limits."""


def _next(size: int, valid: tuple[int, ...]) -> int:
    """Returns `size` if it is valid, or if `valid` is empty. Otherwise returns the next larger valid
    size, or the largest."""
    if not valid or size in valid:
        return size
    return min((n for n in valid if n > size), default=max(valid))


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
