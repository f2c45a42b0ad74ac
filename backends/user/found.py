"""Assignments of canonical parameters to the variables of a user's layer, by names and by shapes.

`assignments_for` returns all `Assignment` that fit. If several fit, the judge takes the one that gives
right answers (`suite.judge.settling`).
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
"""If more assignments fit, none is tried."""

ROLES = ("query", "key", "value", "gate", "output", "score")
"""The roles of projections, in the usual order of definition in a layer."""

AXES = {"query": ("x", "hd"), "key": ("y", "gd"), "value": ("z", "gv"), "gate": ("x", "hv"),
        "output": ("hv", "o"), "score": ("d", "")}  # fmt: skip
"""By role: the letters of the inputs and of the outputs of the projection."""

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
"""Roles, and the pattern of names that mean them. A name is the last word of a variable's path. The first
match counts."""

LAYOUTS = ("ihd", "hid", "hdi", "dih", "idh", "dhi")
"""Orders of the features of a fused projection: i is the projection, h the head, d the feature of a head.
The first order is the usual one."""

TEXTS = {"hid": "head by head", "hdi": "feature by feature of each head", "dih": "(d i h)",
         "idh": "(i d h)", "dhi": "(d h i)"}  # fmt: skip


@dataclass(frozen=True)
class Variable:
    """A variable of a layer. `order` of a matrix: "io" if the first axis is the inputs', "oi" if the last
    one is, "" if unknown."""

    shape: tuple[int, ...]
    order: str = ""


@dataclass(frozen=True)
class Projection:
    """A matrix of a layer and its bias ("" for none), by the names of their variables. If each head has
    its own matrix, the `heads` matrices are one projection, whose names have a star in place of the
    head's number."""

    name: str
    matrix: str
    bias: str
    shape: tuple[int, ...]
    order: str
    heads: int = 1


@dataclass(frozen=True)
class Seat:
    """The canonical `roles` that a projection has in an assignment, with the order of its axes and its
    layout. Several roles are concatenated (a fused projection)."""

    projection: Projection
    roles: tuple[str, ...]
    order: str
    layout: str = LAYOUTS[0]

    @property
    def text(self) -> str:
        """The projection's name and its roles, as a text for the user."""
        layout = TEXTS.get(self.layout)
        text = f"{self.projection.name} = {', '.join(self.roles)}"
        return text if layout is None else f"{text} ({layout})"

    def values(
        self, names: Iterable[str], parameters: Mapping[str, np.ndarray], case: Case
    ) -> dict[str, np.ndarray]:
        """Returns the values of the projection's variables, by those of `names` that are its variables.
        Biases that the case lacks are zero."""
        matrices = [
            parameters[matrix_name(role)].reshape(sizes_of(role, case)) for role in self.roles
        ]
        matrix = self._in_layout(np.concatenate(matrices, -1), case)
        biases = [
            parameters.get(f"{role}_bias", np.zeros(part.shape[1])).reshape(1, -1)
            for role, part in zip(self.roles, matrices, strict=True)
        ]
        bias = self._in_layout(np.concatenate(biases, -1), case)[0]
        head_count = case.sizes.H if self.projection.heads > 1 else 1
        parts = [
            part.T if self.order == "oi" else part for part in np.split(matrix, head_count, -1)
        ]
        matrix_values = dict(zip(names_matching(self.projection.matrix, names), parts, strict=True))
        bias_names = names_matching(self.projection.bias, names)
        return matrix_values | dict(zip(bias_names, np.split(bias, head_count), strict=False))

    def _in_layout(self, columns: np.ndarray, case: Case) -> np.ndarray:
        if self.layout == LAYOUTS[0]:
            return columns
        s = case.sizes
        cube = columns.reshape(len(columns), len(self.roles), s.H, s.D)
        places = [1 + LAYOUTS[0].index(letter) for letter in self.layout]
        return cube.transpose(0, *places).reshape(columns.shape)


@dataclass(frozen=True)
class Assignment:
    """One assignment of canonical parameters to the variables of a layer.

    `lacks_output`: the layer has no output projection and returns the joined heads. The suite adds one.
    """

    seats: tuple[Seat, ...]
    lacks_output: bool = False

    @property
    def text(self) -> str:
        """The projections and their roles, as a text for the user."""
        notes = ["no output projection: the suite adds one"] if self.lacks_output else []
        return "; ".join([*(seat.text for seat in self.seats), *notes])

    @property
    def biased(self) -> frozenset[str]:
        """The roles whose projection has a bias."""
        return frozenset(r for seat in self.seats if seat.projection.bias for r in seat.roles)

    def missing_parameters(self, names: Iterable[str]) -> list[str]:
        """Returns those of the canonical parameters `names` that no variable has."""
        matrices = {matrix_name(role) for seat in self.seats for role in seat.roles}
        assigned = matrices | {f"{role}_bias" for role in self.biased}
        assigned |= {"output_kernel", "output_bias"} if self.lacks_output else set()
        return [name for name in names if name not in assigned]

    def unknown_parameters(self, names: Iterable[str]) -> list[str]:
        """Returns the canonical names of the layer's matrices that are not in `names`."""
        matrices = [matrix_name(role) for seat in self.seats for role in seat.roles]
        return [name for name in matrices if name not in {*names}]

    def load(
        self,
        backend: Backend,
        variables: Mapping[str, Any],
        parameters: Mapping[str, np.ndarray],
        case: Case,
    ) -> None:
        """Set a layer's variables to canonical parameters. Raises ValueError if a variable has another
        size."""
        for seat in self.seats:
            for name, values in seat.values([*variables], parameters, case).items():
                shape = tuple(variables[name].shape)
                if prod(shape) != values.size:
                    raise ValueError(f"{name} has the shape {shape}, expected {values.shape}")
                array = backend.array(values.reshape(shape), case.dtype)
                backend.overwrite(variables[name], array)


def matrix_name(role: str) -> str:
    """Returns the canonical name of the matrix of a projection with this role."""
    return "score_vector" if role == "score" else f"{role}_kernel"


def sizes_of(role: str, case: Case) -> tuple[int, int]:
    """Returns the numbers of input and output features of a projection with this role."""
    return tuple(prod(case.letters[letter] for letter in axes) for axes in AXES[role])  # type: ignore[return-value]


def roles_named_by(name: str, roles: Iterable[str]) -> tuple[str, ...]:
    """Returns the roles that the last word of a projection's name means by `WORDS`, if all of them are in
    `roles`; else ()."""
    words = [word for word in name.split(".") if not word.isdigit() and word != "*"]
    last = re.sub(r"\d", "", words[-1]).lower() if words else ""
    rows = ((row_roles, pattern) for row_roles, pattern in WORDS if set(row_roles) <= {*roles})
    return next((row_roles for row_roles, pattern in rows if re.search(pattern, last)), ())


def roles_by_name(
    projections: Sequence[Projection], roles: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Returns by projection name the roles that the name means; () if several names mean the same
    roles."""
    named_roles = {p.name: roles_named_by(p.name, roles) for p in projections}
    counts = Counter(named_roles.values())
    return {name: roles if counts[roles] == 1 else () for name, roles in named_roles.items()}


def projections_of(
    variables: Mapping[str, Variable], roles: Sequence[str]
) -> list[Projection] | None:
    """Returns the projections of a layer. None if a bias belongs to no matrix, or if a variable is
    neither."""
    projections: dict[str, Projection] = {}
    vectors: dict[str, str] = {}
    for path, variable in variables.items():
        name, is_bias = projection_name(path)
        if is_bias or (len(variable.shape) == 1 and roles_named_by(name, roles) != ("score",)):
            vectors[path] = name
        elif len(variable.shape) > 3 or name in projections:
            return None
        else:
            projections[name] = Projection(name, path, "", variable.shape, variable.order)
    for path, name in vectors.items():
        named = roles_named_by(name, roles)
        owner = projections.get(name) or next(
            (p for p in projections.values() if roles_named_by(p.name, roles) == named != ()),
            None,
        )
        if owner is None or owner.bias:
            return None
        projections[owner.name] = replace(owner, bias=path)
    return list(projections.values())


def projection_name(path: str) -> tuple[str, bool]:
    """Returns the name of the projection that a variable belongs to, and True if the variable is its
    bias."""
    before, _, last = path.rpartition(".")
    match = re.fullmatch(r"(.*?)_?(weights?|kernel|w|bias|b)", last)
    if match is None:
        return path, False
    is_bias = match[2] in ("bias", "b")
    return ".".join(part for part in (before, match[1]) if part) or last, is_bias


def heads_joined(projections: Sequence[Projection], heads: int) -> list[Projection] | None:
    """Returns the projections, with those of single heads joined to one: as many as heads, of one shape,
    and with names that differ in numbers only (`heads.0.query`, `heads.1.query`). None if none joins."""
    groups: dict[str, list[Projection]] = {}
    for projection in projections:
        groups.setdefault(with_stars(projection.name), []).append(projection)
    joined: list[Projection] = []
    for name, members in groups.items():
        first, kinds = members[0], {(m.shape, with_stars(m.bias)) for m in members}
        if len(members) != heads or len(kinds) > 1:
            joined += members
        else:
            joined.append(
                replace(
                    first,
                    name=name,
                    matrix=with_stars(first.matrix),
                    bias=with_stars(first.bias),
                    heads=heads,
                )
            )
    return joined if len(joined) < len(projections) else None


def with_stars(name: str) -> str:
    """Returns the name with a star in place of each number."""
    return re.sub(r"\d+", "*", name)


def names_matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Returns the names that equal `pattern`, or do so with stars in place of numbers."""
    return [name for name in names if pattern in (name, with_stars(name))]


def seats_for(
    projection: Projection, named: tuple[str, ...], roles: Sequence[str], case: Case, order: str
) -> Iterator[Seat]:
    """Yields the seats that fit a projection's shape. Its roles are `named`, the roles that its name
    means, or if this is () any of `roles`. `order`: the order of its axes if the framework does not
    tell."""
    choices: list[tuple[str, ...]] = [named] if named else [(role,) for role in roles]
    if not named and {*ROLES[:3]} <= {*roles}:
        choices.append(ROLES[:3])
    heads = projection.heads
    for seat_roles in choices:
        if not {*seat_roles} <= {*roles} or (heads > 1 and len(seat_roles) > 1):
            continue
        shapes = [sizes_of(role, case) for role in seat_roles]
        if len({inputs for inputs, _ in shapes}) > 1:
            continue
        outputs = sum(out for _, out in shapes)
        if outputs % heads:
            continue
        expected_shape, seat_order = (shapes[0][0], outputs // heads), projection.order or order
        shape = projection.shape
        if len(shape) == 3 and seat_roles[0] != "score":
            letters = "".join(AXES[seat_roles[0]])
            if len(seat_roles) > 1 or shape != tuple(case.letters[x] for x in letters):
                continue
            seat_order = "io"
        elif len(shape) == 1:
            if shape != expected_shape[:1] or seat_roles != ("score",):
                continue
        elif shape != (expected_shape[::-1] if seat_order == "oi" else expected_shape):
            continue
        yield Seat(projection, seat_roles, seat_order)


def seatings(
    projections: Sequence[Projection],
    roles_by_projection: Mapping[str, tuple[str, ...]],
    roles: Sequence[str],
    case: Case,
    default_order: str,
) -> Iterator[tuple[Seat, ...]]:
    """Yields all ways to give each projection a seat in which each of `roles` occurs once.
    `default_order`: the order of axes if the framework does not tell."""
    if not projections:
        if not roles:
            yield ()
        return
    first, *later_projections = projections
    for seat in seats_for(first, roles_by_projection[first.name], roles, case, default_order):
        free_roles = [role for role in roles if role not in seat.roles]
        for other_seats in seatings(
            later_projections, roles_by_projection, free_roles, case, default_order
        ):
            yield (seat, *other_seats)


def in_all_layouts(seats: tuple[Seat, ...], case: Case) -> Iterator[tuple[Seat, ...]]:
    """Yields the seats once for each layout of the fused projection; once if there is none."""
    fused = next((seat for seat in seats if len(seat.roles) > 1), None)
    s = case.sizes
    if fused is None or s.H != s.Hkv or s.D != s.Dv or s.H == 1:
        yield seats
        return
    for layout in LAYOUTS:
        yield tuple(replace(seat, layout=layout) if seat is fused else seat for seat in seats)


def assignments_for(variables: Mapping[str, Variable], case: Case) -> tuple[Assignment, ...]:
    """Returns the assignments of a case's parameters to a layer's variables, the likeliest first. Returns
    () if no assignment fits, or more than `MANY`.

    If none fits, assignments without an output projection are tried; they have `lacks_output`.
    """
    roles = [role for role in ROLES if matrix_name(role) in case.axes]
    readable = {f"{role}_bias" for role in roles} | {matrix_name(role) for role in roles}
    if set(case.operator.learned(case.axes)) - readable:
        return ()
    projections = projections_of(variables, roles)
    if projections is None:
        return ()
    found = tuple(islice(assignments_of_roles(projections, roles, case), MANY + 1))
    if not found and "output" in roles:
        input_roles = [role for role in roles if role != "output"]
        if all({*roles_named_by(p.name, roles)} & {*input_roles} for p in projections):
            without_output = islice(assignments_of_roles(projections, input_roles, case), MANY + 1)
            found = tuple(replace(reading, lacks_output=True) for reading in without_output)
    return found if len(found) <= MANY else ()


def assignments_of_roles(
    projections: Sequence[Projection], roles: Sequence[str], case: Case
) -> Iterator[Assignment]:
    """Yields the assignments in which the projections have all these roles, the likeliest first."""
    joined = heads_joined(projections, case.sizes.H)
    has_unknown_order = any(not p.order and len(p.shape) == 2 for p in projections)
    for candidates in (projections, joined):
        if candidates is None:
            continue
        named_roles = roles_by_name(candidates, roles)
        for default_order in ("io", "oi") if has_unknown_order else ("io",):
            for arrangement in seatings(candidates, named_roles, roles, case, default_order):
                yield from map(Assignment, in_all_layouts(arrangement, case))
