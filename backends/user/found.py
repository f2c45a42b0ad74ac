"""Which parameters of a person's layer are the canonical ones: found by names, and by shapes.

A `Reading` says for each variable of a layer which canonical parameters it holds. `readings` are all that
fit. Where several fit, the judge takes the one that gives right answers (`suite.judge.trial`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from attention_conformance.backends.protocol import Backend
from attention_conformance.suite.spec.case import Case

MANY = 200
"""The number of readings that are tried at most."""

ROLES = ("query", "key", "value", "gate", "output", "score")
"""What a projection may be, in the order in which layers define them."""

AXES = {"query": ("x", "hd"), "key": ("y", "gd"), "value": ("z", "gv"), "gate": ("x", "hv"),
        "output": ("hv", "o"), "score": ("d", "")}  # fmt: skip
"""The letters of the inputs and outputs of each projection."""

WORDS = (
    (("query", "key", "value"), r"qkv|query_?key_?value|c_attn|in_proj"),
    (("query", "value", "key"), r"qvk"),
    (("key", "query", "value"), r"kqv|key_?query_?value"),
    (("key", "value"), r"(^|_|w|to)kv|key_?value"),
    (("query",), r"quer|(^|_|w|to)qs?($|_|proj|lin|dense)"),
    (("key",), r"key|(^|_|w|to)ks?($|_|proj|lin|dense)"),
    (("score",), r"score|energy|align|(^|_)w?_?v_?a?$"),
    (("value",), r"val|(^|_|w|to)vs?($|_|proj|lin|dense)"),
    (("gate",), r"gate|(^|_|w)g($|_)"),
    (("output",), r"out|(^|_|w|to)o($|_|proj|lin|dense)|c_proj|^proj|^fc|final|unify|^dense$|combine"),
)  # fmt: skip
"""The projections that a name says, by a pattern of its last word. The first pattern that fits counts."""

LAYOUTS = ("ihd", "hid", "hdi", "dih", "idh", "dhi")
"""The orders in which the features of fused projections may stand: i is the projection, h the head, d
the feature of a head. The first one is the usual one."""

TEXTS = {"hid": "head by head", "hdi": "feature by feature of each head", "dih": "(d i h)",
         "idh": "(i d h)", "dhi": "(d h i)"}  # fmt: skip


@dataclass(frozen=True)
class Variable:
    """A variable of a layer: its shape, and the order of a matrix' axes: "io" if the first axis is the
    input's, "oi" if the last one is, "" if unknown."""

    shape: tuple[int, ...]
    order: str = ""


@dataclass(frozen=True)
class Projection:
    """A matrix of a layer and its bias ("" without), by the names of the variables. The matrices of all
    heads are one projection, whose names have a star in place of the head's number."""

    name: str
    matrix: str
    bias: str
    shape: tuple[int, ...]
    order: str
    heads: int = 1


@dataclass(frozen=True)
class Seat:
    """A projection, the canonical `roles` that it holds, the order of its axes, and its layout."""

    projection: Projection
    roles: tuple[str, ...]
    order: str
    layout: str = LAYOUTS[0]

    @property
    def text(self) -> str:
        """What the projection holds, for people."""
        layout = TEXTS.get(self.layout)
        text = f"{self.projection.name} = {', '.join(self.roles)}"
        return text if layout is None else f"{text} ({layout})"

    def values(
        self, names: Iterable[str], parameters: Mapping[str, np.ndarray], case: Case
    ) -> dict[str, np.ndarray]:
        """The values of those of the variables `names` that the projection has. Biases that the case
        lacks are zero."""
        matrices = [
            parameters[kernel_of(role)].reshape(sizes_of(role, case)) for role in self.roles
        ]
        matrix = self._laid_out(np.concatenate(matrices, -1), case)
        biases = [
            parameters.get(f"{role}_bias", np.zeros(m.shape[1])).reshape(1, -1)
            for role, m in zip(self.roles, matrices, strict=True)
        ]
        bias = self._laid_out(np.concatenate(biases, -1), case)[0]
        count = case.sizes.H if self.projection.heads > 1 else 1
        parts = [m.T if self.order == "oi" else m for m in np.split(matrix, count, -1)]
        own = dict(zip(matching(self.projection.matrix, names), parts, strict=True))
        bias_names = matching(self.projection.bias, names)
        return own | dict(zip(bias_names, np.split(bias, count), strict=False))

    def _laid_out(self, columns: np.ndarray, case: Case) -> np.ndarray:
        if self.layout == LAYOUTS[0]:
            return columns
        s = case.sizes
        cube = columns.reshape(len(columns), len(self.roles), s.H, s.D)
        places = [1 + LAYOUTS[0].index(letter) for letter in self.layout]
        return cube.transpose(0, *places).reshape(columns.shape)


@dataclass(frozen=True)
class Reading:
    """One way to read the variables of a layer.

    `ends`: the layer has no output projection, and ends with the joined heads. Then the suite adds it.
    """

    seats: tuple[Seat, ...]
    ends: bool = False

    @property
    def text(self) -> str:
        """What the variables hold, for people."""
        more = ["no output projection: the suite adds one"] if self.ends else []
        return "; ".join([*(seat.text for seat in self.seats), *more])

    @property
    def biased(self) -> frozenset[str]:
        """The projections with a bias."""
        return frozenset(r for seat in self.seats if seat.projection.bias for r in seat.roles)

    def unread(self, names: Iterable[str]) -> list[str]:
        """Those of the canonical parameters `names` that no variable holds."""
        kernels = {kernel_of(role) for seat in self.seats for role in seat.roles}
        read = kernels | {f"{role}_bias" for role in self.biased}
        read |= {"output_kernel", "output_bias"} if self.ends else set()
        return [name for name in names if name not in read]

    def unknown(self, names: Iterable[str]) -> list[str]:
        """The matrices of the layer that are none of the canonical parameters `names`."""
        kernels = [kernel_of(role) for seat in self.seats for role in seat.roles]
        return [name for name in kernels if name not in {*names}]

    def load(
        self,
        backend: Backend,
        variables: Mapping[str, Any],
        parameters: Mapping[str, np.ndarray],
        case: Case,
    ) -> None:
        """Set a layer's variables to canonical parameters. Raises ValueError if a shape differs."""
        for seat in self.seats:
            for name, values in seat.values([*variables], parameters, case).items():
                want = tuple(variables[name].shape)
                if prod(want) != values.size:
                    raise ValueError(f"{name} has the shape {want}, expected {values.shape}")
                array = backend.array(values.reshape(want), case.dtype)
                backend.memory.overwrite(variables[name], array)


def kernel_of(role: str) -> str:
    """The canonical name of a projection's matrix."""
    return "score_vector" if role == "score" else f"{role}_kernel"


def sizes_of(role: str, case: Case) -> tuple[int, int]:
    """The numbers of inputs and outputs of a projection."""
    return tuple(prod(case.letters[letter] for letter in axes) for axes in AXES[role])  # type: ignore[return-value]


def said_by(name: str, roles: Iterable[str]) -> tuple[str, ...]:
    """Those of `roles` that the last word of a variable's path says, without numbers; () if none."""
    words = [word for word in name.split(".") if not word.isdigit() and word != "*"]
    last = re.sub(r"\d", "", words[-1]).lower() if words else ""
    known = ((said, pattern) for said, pattern in WORDS if set(said) <= {*roles})
    return next((said for said, pattern in known if re.search(pattern, last)), ())


def names_tell(
    projections: Sequence[Projection], roles: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """What each projection's name says; () if several names say the same."""
    said = {one.name: said_by(one.name, roles) for one in projections}
    counts = Counter(said.values())
    return {name: roles if counts[roles] == 1 else () for name, roles in said.items()}


def projections_of(
    variables: Mapping[str, Variable], roles: Sequence[str]
) -> list[Projection] | None:
    """The matrices of a layer, each with its bias; None if a bias belongs to no matrix, or if a variable
    is neither."""
    found: dict[str, Projection] = {}
    vectors: dict[str, str] = {}
    for path, one in variables.items():
        name, is_bias = stem(path)
        if is_bias or (len(one.shape) == 1 and said_by(name, roles) != ("score",)):
            vectors[path] = name
        elif len(one.shape) > 3 or name in found:
            return None
        else:
            found[name] = Projection(name, path, "", one.shape, one.order)
    for path, name in vectors.items():
        owner = found.get(name) or next(
            (p for p in found.values() if said_by(p.name, roles) == said_by(name, roles) != ()),
            None,
        )
        if owner is None or owner.bias:
            return None
        found[owner.name] = replace(owner, bias=path)
    return list(found.values())


def stem(path: str) -> tuple[str, bool]:
    """The path of a projection, and True if the variable is its bias."""
    before, _, last = path.rpartition(".")
    match = re.fullmatch(r"(.*?)_?(weights?|kernel|w|bias|b)", last)
    if match is None:
        return path, False
    is_bias = match[2] in ("bias", "b")
    return ".".join(part for part in (before, match[1]) if part) or last, is_bias


def grouped(projections: Sequence[Projection], heads: int) -> list[Projection] | None:
    """The projections with those of all heads as one; None if there are none of heads."""
    groups: dict[str, list[Projection]] = {}
    for one in projections:
        groups.setdefault(starred(one.name), []).append(one)
    out: list[Projection] = []
    for name, members in groups.items():
        first, kinds = members[0], {(m.shape, starred(m.bias)) for m in members}
        if len(members) != heads or len(kinds) > 1:
            out += members
        else:
            out.append(
                replace(
                    first,
                    name=name,
                    matrix=starred(first.matrix),
                    bias=starred(first.bias),
                    heads=heads,
                )
            )
    return out if len(out) < len(projections) else None


def starred(name: str) -> str:
    """A name with stars in place of numbers."""
    return re.sub(r"\d+", "*", name)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that are a pattern of `starred`, or equal to it."""
    return [name for name in names if pattern in (name, starred(name))]


def seats_for(
    projection: Projection, said: tuple[str, ...], roles: Sequence[str], case: Case, raw: str
) -> Iterator[Seat]:
    """The seats that a projection can take: what its name has `said`, or any of `roles`. `raw` is the
    order of axes if the framework does not tell."""
    choices: list[tuple[str, ...]] = [said] if said else [(role,) for role in roles]
    if not said and {*ROLES[:3]} <= {*roles}:
        choices.append(ROLES[:3])
    count = projection.heads
    for chosen in choices:
        if not {*chosen} <= {*roles} or (count > 1 and len(chosen) > 1):
            continue
        shapes = [sizes_of(role, case) for role in chosen]
        if len({inputs for inputs, _ in shapes}) > 1:
            continue
        outputs = sum(out for _, out in shapes)
        if outputs % count:
            continue
        want, order = (shapes[0][0], outputs // count), projection.order or raw
        shape = projection.shape
        if len(shape) == 3 and chosen[0] != "score":
            letters = "".join(AXES[chosen[0]])
            if len(chosen) > 1 or shape != tuple(case.letters[x] for x in letters):
                continue
            order = "io"
        elif len(shape) == 1:
            if shape != want[:1] or chosen != ("score",):
                continue
        elif shape != (want[::-1] if order == "oi" else want):
            continue
        yield Seat(projection, chosen, order)


def arranged(
    projections: Sequence[Projection],
    said: Mapping[str, tuple[str, ...]],
    roles: Sequence[str],
    case: Case,
    raw: str,
) -> Iterator[tuple[Seat, ...]]:
    """All ways to give each projection its roles, so that each role is given once."""
    if not projections:
        if not roles:
            yield ()
        return
    first, *rest = projections
    for seat in seats_for(first, said[first.name], roles, case, raw):
        left = [role for role in roles if role not in seat.roles]
        for others in arranged(rest, said, left, case, raw):
            yield (seat, *others)


def laid_out(seats: tuple[Seat, ...], case: Case) -> Iterator[tuple[Seat, ...]]:
    """The seats in all layouts of a fused projection."""
    fused = next((seat for seat in seats if len(seat.roles) > 1), None)
    s = case.sizes
    if fused is None or s.H != s.Hkv or s.D != s.Dv or s.H == 1:
        yield seats
        return
    for layout in LAYOUTS:
        yield tuple(replace(seat, layout=layout) if seat is fused else seat for seat in seats)


def readings(variables: Mapping[str, Variable], case: Case) -> tuple[Reading, ...]:
    """The ways to read a layer's variables as the parameters of a case, the likeliest one first; none if
    they do not fit, or if more than `MANY` do."""
    roles = [role for role in ROLES if kernel_of(role) in case.axes]
    known = {f"{role}_bias" for role in roles} | {kernel_of(role) for role in roles}
    if set(case.operator.learned(case.axes)) - known:
        return ()
    projections = projections_of(variables, roles)
    if projections is None:
        return ()
    found = tuple(islice(possible(projections, roles, case), MANY + 1))
    if not found and "output" in roles:
        rest = [role for role in roles if role != "output"]
        if all({*said_by(one.name, roles)} & {*rest} for one in projections):
            joined = islice(possible(projections, rest, case), MANY + 1)
            found = tuple(replace(reading, ends=True) for reading in joined)
    return found if len(found) <= MANY else ()


def possible(
    projections: Sequence[Projection], roles: Sequence[str], case: Case
) -> Iterator[Reading]:
    """The ways to read projections as these roles, the likeliest one first."""
    by_head = grouped(projections, case.sizes.H)
    unknown = any(not p.order and len(p.shape) == 2 for p in projections)
    for these in (projections, by_head):
        if these is None:
            continue
        said = names_tell(these, roles)
        for raw in ("io", "oi") if unknown else ("io",):
            for arrangement in arranged(these, said, roles, case, raw):
                yield from map(Reading, laid_out(arrangement, case))
