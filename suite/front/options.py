"""Options: each declared once, for pytest and for every command that takes it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
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

LAYERS = tuple(name for name, operator in OPERATORS.items() if not operator.is_default)
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
class CommandOption:
    """One option of the command line. `many`: it may be given again and again; `kind` reads its text.

    `valid` are all texts that it takes, where those can be listed. `Options.check` holds it to them;
    where `checked`, the parser does. `again`: it must be said again to judge one cell of the run.
    """

    help: str
    metavar: str | None = None
    default: Any = ""
    many: bool = False
    kind: Callable[[str], Any] = str
    switch: bool = False
    valid: tuple[str, ...] = ()
    checked: bool = False
    required: bool = False
    again: bool = True

    @property
    def initial(self) -> Any:
        """Its value where it is not given."""
        if self.switch:
            return False
        return () if self.many else self.default

    @property
    def arguments(self) -> dict[str, Any]:
        """The keywords of `add_argument` and of pytest's `addoption`. The help ends with the default,
        where there is one that it does not speak of."""
        if self.switch:
            return {"action": "store_true", "help": self.help}
        common: dict[str, Any] = {"help": self.help, "metavar": self.metavar}
        common |= {"choices": self.valid} if self.checked else {}
        common |= {"required": True} if self.required else {}
        if self.many:
            return common | {"action": "append", "default": []}
        if self.default not in ("", None) and "default" not in self.help:
            number = isinstance(self.default, float)
            common["help"] += (
                f" (default {self.default:g})" if number else f" (default {self.default})"
            )
        return common | {"default": self.default, "type": self.kind}


OPTIONS: dict[str, CommandOption] = {
    "backend": CommandOption(
        f"what to judge: {', '.join(registry.REGISTRY)}, all (installed ones), or module:object of a "
        "third-party backend; repeatable",
        "NAME", many=True,
    ),
    "implementation": CommandOption(
        "only this implementation (sdpa-flash, or torch:sdpa-flash); repeatable",
        "NAME", many=True, again=False,
    ),
    "device": CommandOption(" or ".join(DEVICES), "NAME", DEVICES[0], valid=DEVICES),
    "dtype": CommandOption(
        f"only cases of this dtype: {', '.join(DTYPES)}; repeatable",
        "NAME", many=True, valid=tuple(DTYPES), again=False,
    ),
    "level": CommandOption(
        f"how many cases: {', '.join(LEVELS)}", "NAME", "standard", valid=LEVELS
    ),
    "mode": CommandOption(
        "eager (default): implementations as they are called; compiled: through every compiler of their "
        "framework, on fewer cases; all",
        "NAME", MODES[0], valid=ASKED_MODES,
    ),
    "seed": CommandOption("seed of the values that are drawn", "N", 0, kind=int),
    "function": CommandOption(
        "judge a function with the backend's native attention signature; repeatable",
        "PATH.py:NAME", many=True,
    ),
    "like": CommandOption(
        f"the layer that --function makes, or what it is: {', '.join(LAYERS)} "
        "(docs/layers.md, docs/rotary.md, docs/packed.md, docs/merge.md)", "LAYER"
    ),
    "numerics": CommandOption(
        f"numerics class that --function declares: {', '.join(NUMERICS)} (default {DEFAULT_NUMERICS})",
        "CLASS",
    ),
    "claim": CommandOption(
        f"what --function takes: NAME=VALUE, or DTYPE.NAME=VALUE; names: {', '.join(CLAIMS)} "
        "(docs/function.md); repeatable",
        "NAME=VALUE", many=True,
    ),
    "elect": CommandOption(
        "hold --function to an answer where the field has no single one: QUESTION=ANSWER, or "
        "QUESTION=DTYPE:ANSWER (python -m suite list --words); repeatable",
        "QUESTION=ANSWER", many=True,
    ),
    "drop-in": CommandOption(
        "hold --function to all that the framework's own attention promises: malformed problems are "
        "refused, and elections are the same",
        switch=True,
    ),
    "allow-unused": CommandOption(
        "let --function have parameters that nobody passes", switch=True
    ),
    "expect": CommandOption(
        "a manifest of expected failures of --function, or of a third-party backend; repeatable",
        "FILE.toml", many=True,
    ),
    "optimized": CommandOption(
        "compile every program as people do: by default most of JAX's are compiled with few of XLA's "
        "optimisations, and again with all where an answer is wrong",
        switch=True,
    ),
    "threads": CommandOption(
        "threads that a framework may start, set before it is imported where nobody set them; 0: one for "
        "every CPU, divided among workers",
        "N", 1, kind=int,
    ),
    "cell-timeout": CommandOption(
        "seconds after which a cell has failed, 0 for no limit",
        "SECONDS", CELL_SECONDS, kind=float,
    ),
    "start-timeout": CommandOption(
        "seconds in which frameworks and kernels must be imported, 0 for no limit",
        "SECONDS", START_SECONDS, kind=float, again=False,
    ),
    "results": CommandOption("write records to this new file", "FILE.jsonl", again=False),
    "shard": CommandOption("only part I of N of the cells", "I/N", again=False),
    "audit": CommandOption(
        "run declared-unsupported cells too: stale claims fail", switch=True
    ),
}  # fmt: skip
"""Every option of a run, by name."""


OF_COMMANDS: dict[str, CommandOption] = {
    "case": CommandOption("judge this case alone; repeatable", "ID", many=True),
}
"""Options that several commands have, and pytest has not."""


def add_options(
    add: Callable[..., Any],
    names: Iterable[str] = OPTIONS,
    changed: Mapping[str, Mapping[str, Any]] | None = None,
    /,
    **helps: str,
) -> None:
    """Declare options with `add`, the `add_argument` of a parser or the `addoption` of pytest's group.

    `helps` are other help texts, by name; `changed` other fields of a `CommandOption`, where a command
    takes something else.
    """
    table = OPTIONS | OF_COMMANDS
    for name in names:
        own = dict((changed or {}).get(name, {}))
        own |= {"help": helps[name]} if name in helps else {}
        add(f"--{name}", **replace(table[name], **own).arguments)


@dataclass(frozen=True)
class Options:
    """What a run was asked for, as plain data; stored in the header of its records."""

    backend: tuple[str, ...]
    implementation: tuple[str, ...] = OPTIONS["implementation"].initial
    device: str = OPTIONS["device"].initial
    dtype: tuple[str, ...] = OPTIONS["dtype"].initial
    level: str = OPTIONS["level"].initial
    seed: int = OPTIONS["seed"].initial
    function: tuple[str, ...] = OPTIONS["function"].initial
    numerics: str = OPTIONS["numerics"].initial
    shard: str = OPTIONS["shard"].initial
    audit: bool = OPTIONS["audit"].initial
    like: str = OPTIONS["like"].initial
    mode: str = OPTIONS["mode"].initial
    claim: tuple[str, ...] = OPTIONS["claim"].initial
    elect: tuple[str, ...] = OPTIONS["elect"].initial
    drop_in: bool = OPTIONS["drop-in"].initial
    allow_unused: bool = OPTIONS["allow-unused"].initial
    optimized: bool = OPTIONS["optimized"].initial
    expect: tuple[str, ...] = OPTIONS["expect"].initial
    threads: int = OPTIONS["threads"].initial
    cell_timeout: float = OPTIONS["cell-timeout"].initial
    start_timeout: float = OPTIONS["start-timeout"].initial

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
        for name in ("device", "mode", "level"):
            _one_of(name, getattr(self, name), OPTIONS[name].valid)
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
        again = {n: option for n, option in OPTIONS.items() if option.again}
        values = {name: getattr(self, name.replace("-", "_")) for name in again}
        words = [f"--{n}={value}" for n, o in again.items() if o.many for value in values[n]]
        words += [f"--{n}" for n, option in again.items() if option.switch and values[n]]
        for name, option in again.items():
            if not (option.many or option.switch) and values[name] != option.default:
                words.append(f"--{name}={values[name]}")
        return words


def _dashed(name: str) -> str:
    """A field's name as the command line has it."""
    return name.replace("_", "-")


def _one_of(what: str, value: str, valid: Iterable[str]) -> None:
    names = list(valid)
    if value not in names:
        raise UsageError(f"unknown {what} {value!r}; valid: {', '.join(names)}")
