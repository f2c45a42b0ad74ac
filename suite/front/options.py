"""Options: each declared once, for pytest and for every command that takes it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, Self

from backends import registry
from backends.claims import DEFAULT_NUMERICS, read_claims, read_elections
from backends.registry import UsageError
from suite.spec.claims import CLAIMS
from suite.spec.dtypes import DTYPES, dtype
from suite.spec.operators import OPERATORS
from suite.spec.vocabulary import DEVICES, LEVELS, MODES, NUMERICS

CELL_SECONDS, START_SECONDS = 600.0, 600.0
"""Limits of time that nothing comes near that ends at all."""

ASKED_MODES = (*MODES, "all")
"""What --mode takes: implementations as they are called, through their frameworks' compilers, or both."""

LAYERS = tuple(n for n, operator in OPERATORS.items() if operator.is_layer or not operator.attends)
"""What --like takes."""


@dataclass
class Names:
    """How pytest calls the options: `short`, as they stand here, besides the prefixed names that nobody
    else has."""

    short: bool = True

    def prefixed(self, flag: str) -> str:
        """The name of the option `--name` with the prefix."""
        return f"--attention-{flag.removeprefix('--')}"

    def destination(self, name: str) -> str:
        """Where pytest keeps the value of an option, by its name or its field's."""
        return f"attention_{name.removeprefix('--').replace('-', '_')}"

    def said(self, words: Iterable[str]) -> list[str]:
        """Words of a command line of pytest, by the names there are."""
        return [*words] if self.short else [self.prefixed(word) for word in words]


NAMES = Names()
"""The names in this process."""


@dataclass(frozen=True)
class Option:
    """One option of the command line. `many`: it may be given again and again; `kind` reads its text."""

    help: str
    metavar: str | None = None
    default: Any = ""
    many: bool = False
    kind: Callable[[str], Any] = str
    switch: bool = False

    def arguments(self, text: str) -> dict[str, Any]:
        """The keywords of `add_argument` and of pytest's `addoption`; `text` is the help."""
        if self.switch:
            return {"action": "store_true", "help": text}
        common: dict[str, Any] = {"help": text, "metavar": self.metavar}
        if self.many:
            return common | {"action": "append", "default": []}
        return common | {"default": self.default, "type": self.kind}


OPTIONS: dict[str, Option] = {
    "backend": Option(
        f"what to judge: {', '.join(registry.REGISTRY)}, all (installed ones), or module:object of a "
        "third-party backend; repeatable",
        "NAME", many=True,
    ),
    "implementation": Option(
        "only this implementation (sdpa-flash, or torch:sdpa-flash); repeatable", "NAME", many=True
    ),
    "device": Option(f"{' or '.join(DEVICES)} (default {DEVICES[0]})", "NAME", DEVICES[0]),
    "dtype": Option(
        f"only cases of this dtype: {', '.join(DTYPES)}; repeatable", "NAME", many=True
    ),
    "level": Option(f"how many cases: {', '.join(LEVELS)} (default standard)", "NAME", "standard"),
    "mode": Option(
        "eager (default): implementations as they are called; compiled: through every compiler of their "
        "framework, on fewer cases; all",
        "NAME", MODES[0],
    ),
    "seed": Option("seed of the values that are drawn (default 0)", "N", 0, kind=int),
    "function": Option(
        "judge a function with the backend's native attention signature; repeatable",
        "PATH.py:NAME", many=True,
    ),
    "like": Option(
        f"the layer that --function makes, or what it is: {', '.join(LAYERS)} "
        "(docs/layers.md, docs/rotary.md, docs/packed.md, docs/merge.md)", "LAYER"
    ),
    "numerics": Option(
        f"numerics class that --function declares: {', '.join(NUMERICS)} (default {DEFAULT_NUMERICS})",
        "CLASS",
    ),
    "claim": Option(
        f"what --function takes: NAME=VALUE, or DTYPE.NAME=VALUE; names: {', '.join(CLAIMS)} "
        "(docs/function.md); repeatable",
        "NAME=VALUE", many=True,
    ),
    "elect": Option(
        "hold --function to an answer where the field has no single one: QUESTION=ANSWER, or "
        "QUESTION=DTYPE:ANSWER (python -m suite list --words); repeatable",
        "QUESTION=ANSWER", many=True,
    ),
    "drop-in": Option(
        "hold --function to all that the framework's own attention promises: malformed problems are "
        "refused, and elections are the same",
        default=False, switch=True,
    ),
    "allow-unused": Option(
        "let --function have parameters that nobody passes", default=False, switch=True
    ),
    "expect": Option(
        "a manifest of expected failures of --function, or of a third-party backend; repeatable",
        "FILE.toml", many=True,
    ),
    "optimized": Option(
        "compile every program as people do: by default most of JAX's are compiled with few of XLA's "
        "optimisations, and again with all where an answer is wrong",
        default=False, switch=True,
    ),
    "threads": Option(
        "threads that a framework may start, set before it is imported where nobody set them; 0: one for "
        "every CPU, divided among workers (default 1)",
        "N", 1, kind=int,
    ),
    "cell-timeout": Option(
        f"seconds after which a cell has failed, 0 for no limit (default {CELL_SECONDS:.0f})",
        "SECONDS", CELL_SECONDS, kind=float,
    ),
    "start-timeout": Option(
        "seconds in which frameworks and kernels must be imported, 0 for no limit "
        f"(default {START_SECONDS:.0f})",
        "SECONDS", START_SECONDS, kind=float,
    ),
    "results": Option("write records to this new file", "FILE.jsonl"),
    "shard": Option("only part I of N of the cells", "I/N"),
    "audit": Option(
        "run declared-unsupported cells too: stale claims fail", default=False, switch=True
    ),
}  # fmt: skip
"""Every option of a run, by name."""


def add_options(add: Callable[..., Any], names: Iterable[str] = OPTIONS, **helps: str) -> None:
    """Declare options with `add`, the `add_argument` of a parser or the `addoption` of pytest's group.

    `helps` are other help texts, by name.
    """
    for name in names:
        option = OPTIONS[name]
        add(f"--{name}", **option.arguments(helps.get(name, option.help)))


@dataclass(frozen=True)
class Options:
    """What a run was asked for, as plain data; stored in the header of its records."""

    backend: tuple[str, ...]
    implementation: tuple[str, ...] = ()
    device: str = DEVICES[0]
    dtype: tuple[str, ...] = ()
    level: str = "standard"
    seed: int = 0
    function: tuple[str, ...] = ()
    numerics: str = ""
    shard: str = ""
    audit: bool = False
    like: str = ""
    mode: str = MODES[0]
    claim: tuple[str, ...] = ()
    elect: tuple[str, ...] = ()
    drop_in: bool = False
    allow_unused: bool = False
    optimized: bool = False
    expect: tuple[str, ...] = ()
    threads: int = 1
    cell_timeout: float = CELL_SECONDS
    start_timeout: float = START_SECONDS

    @classmethod
    def of(cls, lookup: Callable[[str], Any]) -> Self:
        """The options that `lookup(name)` gives, by the names of fields; those it has not keep their
        defaults."""
        values: dict[str, Any] = {f.name: lookup(f.name) for f in fields(cls)}
        known: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in values.items() if v is not None
        }
        return cls(**known)

    @classmethod
    def of_arguments(cls, arguments: argparse.Namespace) -> Self:
        """The options of a parsed command line."""
        backend = arguments.backend
        many = [backend] if isinstance(backend, str) else backend
        return cls.of(lambda name: many if name == "backend" else getattr(arguments, name, None))

    @property
    def said(self) -> dict[str, Any]:
        """What the options claim of a function (see `suite.spec.claims`). Raises UsageError."""
        said = read_claims(self.claim)
        claims = {
            "numerics": self.numerics, "elections": read_elections(self.elect),
            "drop_in": self.drop_in, "allow_unused": self.allow_unused, "expect": self.expect,
        }  # fmt: skip
        return said | {name: value for name, value in claims.items() if value}

    @property
    def backends(self) -> list[str]:
        """Canonical backend names, "all" written out. Raises UsageError."""
        names: list[str] = []
        for name in self.backend:
            every = registry.together(registry.installed())
            names += every if name == "all" else [registry.canonical(name)]
        names = list(dict.fromkeys(names))
        registry.check_one_engine(names)
        return names

    def check(self) -> None:
        """Raise UsageError for whatever can be known to be wrong without importing a framework."""
        if not self.backend:
            installed = ", ".join(registry.installed())
            raise UsageError(
                f"choose what to judge with {NAMES.said(['--backend=NAME'])[0]}; installed here: "
                f"{installed}, all"
            )
        names = self.backends
        _one_of("device", self.device, DEVICES)
        _one_of("mode", self.mode, ASKED_MODES)
        _one_of("level", self.level, LEVELS)
        for name in self.dtype:
            try:
                dtype(name)
            except ValueError as error:
                raise UsageError(str(error)) from error
        if self.function and len(names) != 1:
            raise UsageError(
                f"--function needs exactly one --backend (whose signature it has), got {names}"
            )
        if self.like:
            if not self.function:
                raise UsageError("--like says which layer a --function makes, and none is given")
            _one_of("layer", self.like, LAYERS)
        if self.numerics:
            _one_of("numerics class", self.numerics, NUMERICS)
            if not self.function:
                raise UsageError("--numerics declares the class of a --function, and none is given")
        for name in ("claim", "elect", "drop_in", "allow_unused"):
            if getattr(self, name) and not self.function:
                raise UsageError(f"--{_dashed(name)} speaks of a --function, and none is given")
        if self.expect and not self.function and not any(":" in name for name in names):
            raise UsageError(
                "--expect is the manifest of a --function or of a third-party backend; that of "
                f"{', '.join(names)} is part of this project"
            )
        _ = self.said
        for name in ("threads", "cell_timeout", "start_timeout"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"--{_dashed(name)} must not be negative, got {value}")
        self.part()

    def part(self) -> tuple[int, int]:
        """Shard i of n, (1, 1) where the run is whole. Raises UsageError."""
        if not self.shard:
            return 1, 1
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"expected --shard=i/n with 1 <= i <= n, got {self.shard!r}")
        return int(match[1]), int(match[2])

    def words(self) -> list[str]:
        """What of these options must be said again to judge one cell of the run."""
        words = [f"--backend={name}" for name in self.backend]
        words += [f"--function={name}" for name in self.function]
        words += [
            f"--{n}={value}" for n in ("claim", "elect", "expect") for value in getattr(self, n)
        ]
        for name in ("audit", "drop_in", "allow_unused", "optimized"):
            words += [f"--{_dashed(name)}"] if getattr(self, name) else []
        for name in (
            "like", "device", "level", "mode", "seed", "numerics", "threads", "cell_timeout",
        ):  # fmt: skip
            value = getattr(self, name)
            if value != getattr(Options, name):
                words.append(f"--{_dashed(name)}={value}")
        return words


def _dashed(name: str) -> str:
    """A field's name as the command line has it."""
    return name.replace("_", "-")


def _one_of(what: str, value: str, valid: Iterable[str]) -> None:
    names = list(valid)
    if value not in names:
        raise UsageError(f"unknown {what} {value!r}; valid: {', '.join(names)}")
