"""Options of a run: each declared once, for pytest and for every command that takes it."""

from __future__ import annotations

import re
import secrets
from argparse import ArgumentTypeError
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from reprlib import repr as brief
from typing import Any

from attention_conformance.backends import registry
from attention_conformance.backends.claims import (
    DEFAULT_NUMERICS,
    read_claims,
    read_elections,
    read_parameters,
)
from attention_conformance.backends.registry import UsageError
from attention_conformance.suite.flags import (
    CommandOptions,
    Flag,
    dashed,
    flags,
    number,
    option,
    whole_number,
)
from attention_conformance.suite.spec.claims import CLAIMS
from attention_conformance.suite.spec.dtypes import DTYPES, dtype
from attention_conformance.suite.spec.operators import OPERATORS
from attention_conformance.suite.spec.vocabulary import DEVICES, LEVELS, MODES, NUMERICS

CELL_SECONDS, START_SECONDS = 600.0, 600.0
"""Time limits far beyond every cell and every import that ends at all."""

MODE_VALUES = (*MODES, "all")
"""The values of --mode: implementations are called eagerly, through their frameworks' compilers, or
both."""

LAYERS = tuple(
    n for operator in OPERATORS.values() for n in operator.kinds if not operator.is_default
)
"""The values of --like, besides `PLAIN`."""

PLAIN = "masked"
"""A value of --like that means the same as no --like: plain attention with parameters for two masks."""


@dataclass
class Names:
    """The names of the options in pytest: with the prefix `--attention-`, and if `short` is True also
    without it."""

    short: bool = True

    def prefixed(self, flag: str) -> str:
        """Returns the option "--name" or "name" with the prefix: "--attention-name"."""
        return f"--attention-{flag.removeprefix('--')}"

    def destination(self, name: str) -> str:
        """Returns the name of the attribute in which pytest stores an option. `name`: of the option or of
        the field."""
        return f"attention_{name.removeprefix('--').replace('-', '_')}"

    def in_pytest(self, options: Iterable[str]) -> list[str]:
        """Returns options, each "--name" or "--name=value", as pytest takes them: unchanged, or with the
        prefix --attention- if `short` is False."""
        return [*options] if self.short else [self.prefixed(option) for option in options]


NAMES = Names()
"""The names in this process."""


NOUNS = {"like": "layer", "numerics": "numerics class"}
"""The noun in messages for the value of a flag whose name is no noun."""

OUTSIDE = {
    "results": Flag("write records to this new file", "FILE.jsonl"),
    "verdict": Flag(
        "write the verdict of the run to this new file (docs/untrusted.md)", "FILE.json"
    ),
    "verdict-fd": Flag("write the verdict of the run to this open file descriptor", "N"),
    "time": Flag(
        "time --function on this workload of `attention-conformance bench` if its cells are right, for "
        "the verdict; repeatable",
        "WORKLOAD",
        many=True,
    ),
    "case": Flag("judge this case alone; repeatable", "ID", many=True),
}
"""Flags of options that are no fields of `Options`: result files, workloads, and cases of a command."""

CELL_OPTIONS = (
    "level", "shard", "audit", "optimized", "elect", "drop_in", "allow_unused",
    "allow_refusals", "expect", "inherit_known",
)  # fmt: skip
"""Options that only runs of cells have; `bench` has none of them."""

NOTHING = "nothing"
"""The value of --forbid that lets an untrusted function call the framework's own attention."""

FORBID_ADVICE = (
    f"--untrusted fails a call of the framework's own attention; --forbid={NOTHING} allows it"
)
"""The note of a run in which a call of the framework's own attention failed."""

SECRET = "secret"
"""The value of --seed for a random seed, which is unknown before the run."""

SECRET_SEEDS: set[int] = set()
"""The seeds that this process drew for --seed=secret."""


def seed(text: str) -> int:
    """Returns the number in a value of --seed. For "secret" returns a random number of 64 bits, which is
    also stored in `SECRET_SEEDS`. Raises ArgumentTypeError."""
    if text == SECRET:
        drawn = secrets.randbits(64)
        SECRET_SEEDS.add(drawn)
        return drawn
    with suppress(ValueError):
        if 0 <= int(text) < 2**64:
            return int(text)
    raise ArgumentTypeError(f"expected a whole number of 64 bits, 0 or more, got {brief(text)}")


@dataclass(frozen=True)
class Options(CommandOptions):
    """The options of a run, as plain data; stored in the header of its records. Each field declares its
    flag, which pytest and several commands have."""

    backend: tuple[str, ...] = option(
        f"what to judge: {', '.join(registry.registered())}, all (installed ones), or module:object of a "
        "third-party backend; repeatable",
        "NAME",
        many=True,
    )
    implementation: tuple[str, ...] = option(
        "only this implementation (sdpa-flash, or torch:sdpa-flash); repeatable",
        "NAME",
        many=True,
        for_rerun=False,
    )
    device: str = option(" or ".join(DEVICES), "NAME", DEVICES[0], valid=DEVICES)
    dtype: tuple[str, ...] = option(
        f"only cases of this dtype: {', '.join(DTYPES)}; repeatable",
        "NAME",
        many=True,
        valid=tuple(DTYPES),
        for_rerun=False,
    )
    level: str = option(f"how many cases: {', '.join(LEVELS)}", "NAME", "standard", valid=LEVELS)
    mode: str = option(
        "eager (default): implementations as they are called; compiled: through every compiler of their "
        "framework, on fewer cases; all",
        "NAME",
        MODES[0],
        valid=MODE_VALUES,
    )
    seed: int = option(
        "seed of the values that are drawn; secret: a new seed, which is printed at the end",
        "N",
        0,
        kind=seed,
    )
    function: tuple[str, ...] = option(
        "judge a function, as it is (docs/signatures.md); repeatable",
        "PATH.py:NAME",
        many=True,
    )
    like: str = option(
        f"the layer that --function makes, or what it is: {', '.join(LAYERS)} "
        "(docs/layers.md, docs/operators)",
        "LAYER",
        valid=LAYERS,
        for_function=True,
    )
    numerics: str = option(
        f"numerics class that --function declares: {', '.join(NUMERICS)} (default {DEFAULT_NUMERICS})",
        "CLASS",
        valid=NUMERICS,
        for_function=True,
    )
    claim: tuple[str, ...] = option(
        f"what --function takes: NAME=VALUE, or DTYPE.NAME=VALUE; names: {', '.join(CLAIMS)} "
        "(docs/claims.md); repeatable",
        "NAME=VALUE",
        many=True,
        for_function=True,
    )
    parameter: tuple[str, ...] = option(
        "what a parameter of --function is given whose name does not tell: NAME=WORD, as m=attn_mask "
        "(docs/signatures.md); repeatable",
        "NAME=WORD",
        many=True,
        for_function=True,
    )
    elect: tuple[str, ...] = option(
        "hold --function to an answer where the field has no single one: QUESTION=ANSWER, or "
        "QUESTION=DTYPE:ANSWER (attention-conformance list --words); repeatable",
        "QUESTION=ANSWER",
        many=True,
        for_function=True,
    )
    drop_in: bool = option(
        "hold --function to all that the framework's own attention promises: malformed problems are "
        "refused, and elections are the same",
        switch=True,
        for_function=True,
    )
    allow_unused: bool = option(
        "let --function have parameters that are nearly called like those passed",
        switch=True,
        for_function=True,
    )
    allow_refusals: bool = option(
        "let --function refuse more than half of what its signature and its claims allow",
        switch=True,
        for_function=True,
        for_rerun=False,
    )
    forbid: tuple[str, ...] = option(
        "fail --function in cells in which it calls one of these functions, as "
        "torch.nn.functional.scaled_dot_product_attention; with --untrusted by default the framework's "
        "own attention, which nothing allows; repeatable",
        "NAME[,NAME]",
        many=True,
        for_function=True,
    )
    isolate: bool = option(
        "run --function in a child process with few rights; what judges never imports its file "
        "(docs/untrusted.md)",
        switch=True,
        for_function=True,
    )
    untrusted: bool = option(
        "judge a --function that may cheat: --isolate, values also in sizes that the seed draws, and the "
        "file's own claims are not taken (docs/untrusted.md)",
        switch=True,
        for_function=True,
    )
    expect: tuple[str, ...] = option(
        "a manifest of expected failures of --function, or of a third-party backend; repeatable",
        "FILE.toml",
        many=True,
    )
    inherit_known: str = option(
        "yes (default): what --function fails as the framework's own code is known to fail, and does, is "
        "known; no: it fails",
        "yes|no",
        "yes",
        valid=("yes", "no"),
        for_function=True,
    )
    optimized: bool = option(
        "compile every program as people do: by default most of JAX's are compiled with few of XLA's "
        "optimisations, and again with all where an answer is wrong",
        switch=True,
    )
    threads: int = option(
        "threads that a framework may start, set before it is imported where nobody set them; 0: one for "
        "every CPU, divided among workers",
        "N",
        1,
        kind=whole_number,
    )
    cell_timeout: float = option(
        "seconds after which a cell has failed, 0 for no limit",
        "SECONDS",
        CELL_SECONDS,
        kind=number,
    )
    start_timeout: float = option(
        "seconds in which frameworks and kernels must be imported, 0 for no limit",
        "SECONDS",
        START_SECONDS,
        kind=number,
        for_rerun=False,
    )
    shard: str = option("only part I of N of the cells", "I/N", for_rerun=False)
    audit: bool = option("run declared-unsupported cells too: stale claims fail", switch=True)

    def __post_init__(self) -> None:
        if self.like == PLAIN:
            object.__setattr__(self, "like", "")

    @property
    def claims(self) -> dict[str, Any]:
        """The claims about user functions by name, from all options (see `suite.spec.claims`). Raises
        UsageError."""
        claims = {
            "numerics": self.numerics, "elections": read_elections(self.elect),
            "forbid": ",".join(n for n in self.forbid if n != NOTHING), "drop_in": self.drop_in,
            "allow_unused": self.allow_unused, "expect": self.expect,
            "parameters": read_parameters(self.parameter),
        }  # fmt: skip
        non_empty = {name: value for name, value in claims.items() if value}
        return read_claims(self.claim) | non_empty

    @property
    def function_names(self) -> tuple[str, ...]:
        """The names of the user functions, without their files."""
        return tuple(text.rpartition(":")[2] for text in self.function)

    @property
    def backends(self) -> list[str]:
        """Canonical backend names, with "all" replaced by the names of installed backends. Raises
        UsageError."""
        names: list[str] = []
        for name in self.backend:
            if name == "all":
                names += registry.judged_together(registry.installed())
            else:
                names.append(registry.canonical(name))
        names = list(dict.fromkeys(names))
        registry.check_one_engine(names)
        return names

    def check(self) -> None:
        """Raise UsageError for a mistake in the options that can be found without importing a
        framework."""
        if not self.backend:
            installed = ", ".join(registry.installed())
            raise UsageError(
                f"choose what to judge with {NAMES.in_pytest(['--backend=NAME'])[0]}; installed here: "
                f"{installed}, all"
            )
        names = self.backends
        for name, flag in flags(Options).items():
            value = self._value(name)
            if flag.valid and not flag.many and value not in (flag.initial, *flag.valid):
                valid = ", ".join(flag.valid)
                raise UsageError(f"unknown {NOUNS.get(name, name)} {value!r}; valid: {valid}")
        for name in self.dtype:
            try:
                dtype(name)
            except ValueError as error:
                raise UsageError(str(error)) from error
        if self.function and len(names) != 1:
            raise UsageError(
                f"--function needs exactly one --backend (whose signature it has), got {names}"
            )
        for name, flag in flags(Options).items():
            if flag.for_function and not self.function and self._value(name) != flag.initial:
                raise UsageError(f"--{name} speaks of a --function, and none is given")
        if self.forbid and self.mode == "compiled":
            raise UsageError("--forbid is about eager calls: choose --mode=eager or --mode=all")
        if self.expect and not self.function and not any(":" in name for name in names):
            raise UsageError(
                "--expect is the manifest of a --function or of a third-party backend; that of "
                f"{', '.join(names)} is part of this project"
            )
        _ = self.claims
        for name in ("threads", "cell_timeout", "start_timeout"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise UsageError(f"--{dashed(name)} must not be negative, got {value}")
        self.part()

    @property
    def isolates(self) -> bool:
        """True if user functions run in a child process."""
        return self.isolate or self.untrusted

    @property
    def compiles_quickly(self) -> bool:
        """True if backends may compile with few optimisations. Never in compiled mode."""
        return not self.optimized and self.mode != "compiled"

    def part(self) -> tuple[int, int]:
        """Returns the shard's number and the number of shards; (1, 1) without --shard. Raises
        UsageError."""
        if not self.shard:
            return 1, 1
        match = re.fullmatch(r"(\d{1,18})/(\d{1,18})", self.shard)
        if not match or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"expected --shard=i/n with 1 <= i <= n, got {brief(self.shard)}")
        return int(match[1]), int(match[2])


def shared(name: str, **changed: Any) -> Any:
    """Returns a dataclass field for an option that a command shares with runs: a copy of the flag `name`
    of `Options` or `OUTSIDE`, with the fields `changed`."""
    return option(**vars(replace((flags(Options) | OUTSIDE)[name], **changed)))
