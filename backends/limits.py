"""Limits: the sizes and scales that an implementation supports."""

from __future__ import annotations

from dataclasses import dataclass, replace

from suite.spec.sizes import Sizes


@dataclass(frozen=True)
class Limits:
    """Supported sizes and scales; an empty tuple, 0, False and None stand for no limit.

    - `head_sizes`: supported D
    - `value_sizes`: supported Dv; default `head_sizes`
    - `queries`: the only supported Lq
    - `max_length`: greatest Lq and Lk
    - `equal_lengths`: Lq must equal Lk
    - `equal_heads`: Hkv must equal H
    - `scales`: smallest and largest scale

    Raises ValueError for sizes below 1, and for scales in the wrong order.
    """

    head_sizes: tuple[int, ...] = ()
    value_sizes: tuple[int, ...] = ()
    queries: int = 0
    max_length: int = 0
    equal_lengths: bool = False
    equal_heads: bool = False
    scales: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        for name in ("head_sizes", "value_sizes"):
            if any(not isinstance(n, int) or n < 1 for n in getattr(self, name)):
                raise ValueError(
                    f"{name} are whole numbers from 1 on, got {list(getattr(self, name))}"
                )
        if self.queries < 0:
            raise ValueError(f"queries is a number of queries, got {self.queries}")
        if self.max_length < 0:
            raise ValueError(f"max_length is a number of queries and keys, got {self.max_length}")
        if self.scales is not None and not self.scales[0] <= self.scales[1]:
            raise ValueError(
                f"scales are the smallest and the largest one, got {list(self.scales)}"
            )

    @property
    def sizes_of_values(self) -> tuple[int, ...]:
        """The supported Dv."""
        return self.value_sizes or self.head_sizes

    def refusal(self, sizes: Sizes, scale: float | None = None) -> str | None:
        """The reason why sizes or an explicit scale exceed the limits, or None."""
        if self.head_sizes and sizes.D not in self.head_sizes:
            return f"declares head sizes {_listed(self.head_sizes)}, and {sizes.D} is none of them"
        if self.sizes_of_values and sizes.Dv not in self.sizes_of_values:
            listed = _listed(self.sizes_of_values)
            return f"declares value sizes {listed}, and {sizes.Dv} is none of them"
        if self.queries and sizes.Lq != self.queries:
            other = "more" if sizes.Lq > self.queries else "fewer"
            return f"declares calls of {self.queries} queries, and here are {other}"
        longest = max(sizes.Lq, sizes.Lk)
        if self.max_length and longest > self.max_length:
            return f"declares lengths up to {self.max_length}, and {longest} is more"
        if self.equal_lengths and sizes.Lq != sizes.Lk:
            return f"declares equal lengths, and these are {sizes.Lq} and {sizes.Lk}"
        if self.equal_heads and sizes.H != sizes.Hkv:
            return f"declares equal heads, and these are {sizes.H} and {sizes.Hkv}"
        if scale is not None and self.scales and not self.scales[0] <= scale <= self.scales[1]:
            low, high = self.scales
            return f"declares scales from {low:g} to {high:g}, and {scale:g} is none of them"
        return None

    def fitted(self, sizes: Sizes) -> Sizes:
        """The nearest sizes within the limits; the next larger size if there is one.

        Dv stays equal to D if the limits allow. Lk of 0 or 1, and Lq of 0, stay unchanged.
        """
        D = _next(sizes.D, self.head_sizes)
        Dv = _next(D if sizes.Dv == sizes.D else sizes.Dv, self.sizes_of_values)
        Lq, Lk = sizes.Lq and (self.queries or sizes.Lq), sizes.Lk
        if self.equal_lengths:
            Lq = Lk = Lk if Lk < 2 else Lq and (self.queries or max(Lq, Lk))
        longest = self.max_length or max(Lq, Lk)
        Hkv = sizes.H if self.equal_heads else sizes.Hkv
        return replace(sizes, Hkv=Hkv, D=D, Dv=Dv, Lq=min(Lq, longest), Lk=min(Lk, longest))


ANY = Limits()
"""No limits."""


def _next(size: int, valid: tuple[int, ...]) -> int:
    if not valid or size in valid:
        return size
    return min((n for n in valid if n > size), default=max(valid))


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
