"""Loading: backends, implementations and user functions, from the names that the options give.

Everything that is wrong with the names is a UsageError that lists what would be right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attention_conformance.backends import registry
from attention_conformance.backends.compilers import Compiled, compiled_forms
from attention_conformance.backends.protocol import (
    Backend,
    BackendUnavailable,
    Implementation,
    TimeOver,
)
from attention_conformance.backends.registry import UsageError
from attention_conformance.backends.user.function import UserCallable
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.judge import leaks
from attention_conformance.suite.judge.trial import trial
from attention_conformance.suite.records.expectations import (
    ExpectationError,
    Manifest,
    load,
    load_named,
)
from attention_conformance.suite.run.isolation.remote import Remote, isolated
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.process import limited
from attention_conformance.suite.run.suggestions import suggestion
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.text import valid_names


@dataclass(frozen=True)
class UserCode:
    """Functions at hand by the names that the options call them, and what is claimed of functions besides
    what the options claim (see `suite.spec.claims.CLAIMS`)."""

    callables: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    claimed: Mapping[str, Any] = field(default_factory=dict)


NO_CODE = UserCode()
"""User functions are only those that the options name."""


@dataclass(frozen=True)
class LoadedBackend:
    """A backend, and what of it is judged.

    `implementations` are judged. Among them are user `functions`, with their compiled forms; they fail as
    `of_functions` expects, all others as `manifest` expects. Beside user functions `natives` are the
    framework's own implementations. `expect` are the files that `of_functions` was read from. `notes` are
    for people.
    """

    backend: Backend
    implementations: tuple[Implementation, ...]
    functions: tuple[Implementation, ...]
    natives: tuple[Implementation, ...]
    manifest: Manifest
    of_functions: Manifest
    expect: tuple[Path, ...]
    notes: tuple[str, ...]

    def expected_of(self, implementation: Implementation) -> Manifest:
        """The expected failures of an implementation."""
        return self.of_functions if implementation in self.functions else self.manifest


OnDeath = Callable[[str], object]
"""Takes the sentence that is to be said if the process dies now."""


def ignore_death(death: str) -> None:
    """No process says how it died."""


def load_backends(
    options: Options, user: UserCode, on_death: OnDeath
) -> tuple[list[LoadedBackend], dict[str, BackendUnavailable]]:
    """Import the frameworks, find the implementations that the options ask for, and try user functions
    out; returns besides those backends of "all" that cannot be loaded. Raises UsageError."""
    by_name = {registry.canonical(name) for name in options.backend if name != "all"}
    loaded: list[LoadedBackend] = []
    unavailable: dict[str, BackendUnavailable] = {}
    for name in options.backends:
        try:
            with importing(options):
                backend = None if options.isolates else registry.load(name, options.device)
            loaded.append(load_backend(backend, options, user, on_death))
        except BackendUnavailable as error:
            if name in by_name:
                raise UsageError(f"backend {name} cannot be used: {error}") from error
            unavailable[name] = error
    if options.implementation:
        loaded = _selected(loaded, options.implementation)
    if not any(one.implementations for one in loaded):
        reasons = {name: str(error) for name, error in unavailable.items()}
        raise UsageError(f"no implementation to judge; unavailable: {reasons}")
    return loaded, unavailable


@contextmanager
def importing(options: Options) -> Iterator[None]:
    """The context in which frameworks and users' files are imported. Raises UsageError if that takes too
    long."""
    try:
        with limited(options.start_timeout, "importing frameworks and kernels"):
            yield
    except TimeOver as error:
        longer = "; --start-timeout gives it longer" if error.kind == "timeout" else ""
        raise UsageError(f"{error}{longer}") from error


def load_backend(
    backend: Backend | None,
    options: Options,
    user: UserCode = NO_CODE,
    on_death: OnDeath = ignore_death,
) -> LoadedBackend:
    """A backend's implementations, or instead of them the user functions, which are tried out. Isolated
    functions have backends of their own, and `backend` is not read. Raises UsageError, and
    BackendUnavailable if functions are isolated."""
    backends: list[Any] = [backend] * len(options.function)
    if options.isolates:
        with importing(options):
            backends = [isolated(options, text) for text in options.function]
            backend = backends[0].apart
    assert backend is not None
    quick = backend.compilers.quick() if options.compiles_quickly else None
    quick_natives = None if options.function else quick
    natives = registry.implementations(quick_natives or backend)
    if quick_natives is not None:
        for native, optimized in zip(natives, registry.implementations(backend), strict=True):
            native.optimized = optimized
    functions: list[Implementation] = []
    notes: list[str] = []
    expect: list[Path] = []
    for text, asked in zip(options.function, backends, strict=True):
        with leaks.quiet(), importing(options):
            settings = leaks.Settings(asked)
            try:
                traced: Implementation | None = None
                if quick is not None and options.mode == "eager" and ".py:" in text:
                    # A module of its own: what the function stores while JAX traces it stays there.
                    traced, _ = user_function(quick, text, options, user)
                function, files = user_function(asked, text, options, user)
            finally:
                left = settings.restore()
        try_out(text, function, options.cell_timeout, on_death)
        if isinstance(function, UserCallable) and isinstance(traced, UserCallable):
            function = function.quickly(traced)
        functions.append(function)
        notes += [f"{function}: {remark}" for remark in function.remarks]
        notes += parameters_found(function)
        notes += [
            f"importing {text} left {change}; cells are judged with what was" for change in left
        ]
        if isinstance(asked, Remote):
            notes += [f"{function}: {open_way}" for open_way in asked.link.open]
        expect += [path for path in files if path not in expect]
    judged = functions + (natives if options.implementation or not options.function else [])
    compiled = [] if options.mode == "eager" else compiled_forms(backend, judged)
    functions += [form for form in compiled if form.inner in functions]
    judged = [*(judged if options.mode != "compiled" else []), *compiled]
    twice = [name for name, count in Counter(i.name for i in judged).items() if count > 1]
    if twice:
        raise UsageError(f"two implementations of {backend.name} are called {twice[0]!r}")
    try:
        entries = load(Path(backend.expectations))
        if not options.function:
            entries += [entry for path in options.expect for entry in load_named(path)]
        of_functions = [entry for path in expect for entry in load_named(path)]
    except ExpectationError as error:
        raise UsageError(str(error)) from error
    return LoadedBackend(
        backend, tuple(judged), tuple(functions), tuple(natives if options.function else ()),
        Manifest(entries, backend.versions, backend.device),
        Manifest(of_functions, backend.versions, backend.device), tuple(expect), tuple(notes),
    )  # fmt: skip


def user_function(
    backend: Backend, text: str, options: Options, user: UserCode = NO_CODE
) -> tuple[Implementation, Sequence[Path]]:
    """The user function that the options call `text`, and the manifests that it names. Raises
    UsageError."""
    said = {**options.claims, **user.claimed}
    if isinstance(backend, Remote):
        function, claims = backend.load(text, said, options.like, options.untrusted)
    elif text in user.callables:
        function, claims = registry.callable_implementation(
            backend, user.callables[text], text, said, options.like
        )
    else:
        function, claims = registry.function_implementation(backend, text, said, options.like)
    return function, claims.expect


def _selected(loaded: Sequence[LoadedBackend], names: Sequence[str]) -> list[LoadedBackend]:
    """The backends with the implementations of these names ("sdpa" or "torch:sdpa") and every user
    function alone. Raises UsageError for an unknown name."""

    def called(i: Implementation) -> set[str]:
        return {i.name, str(i)} | (called(i.inner) if isinstance(i, Compiled) else set())

    every = [i for one in loaded for i in one.implementations]
    unknown = sorted(set(names).difference(*map(called, every)))
    if unknown:
        raise UsageError(
            f"unknown implementation {', '.join(unknown)}{valid_names(unknown[0], map(str, every))}"
        )
    return [
        replace(one, implementations=tuple(
            i for i in one.implementations if called(i) & set(names) or i in one.functions
        ))
        for one in loaded
    ]  # fmt: skip


def try_out(text: str, function: Implementation, seconds: float, on_death: OnDeath) -> None:
    """Call the user function named by `text` on a few cases, for so many seconds each, and bind it as
    they show. Raises UsageError if the function cannot be judged."""
    who = f"function {text!r}"

    @contextmanager
    def calling(case: Case) -> Iterator[None]:
        on_death(f"{who} killed the process in its trial call on {case.id}")
        with limited(seconds, f"its trial call on {case.id}"):
            yield
        on_death("")

    reason = trial(function, calling, suggestion)
    if reason is not None:
        raise UsageError(f"{who}: {reason}")


def parameters_found(function: Implementation) -> list[str]:
    """How the parameters of a user's layer are found, as a note for people."""
    text = getattr(function, "parameters_found", "")
    return [f"{function}: {text}"] if text else []


def lacking_parameters(function: Implementation, level: str) -> list[str]:
    """How many cells of a level each parameter would add that a user layer lacks, the most first, as a
    note for people; none if no parameter adds any."""
    if not isinstance(function, UserLayer):
        return []
    cells = [
        (check, cell.case)
        for check in all_checks().values()
        for cell in check.cells(level, [function])
        if check.unsupported(function, cell.case) is not None
    ]
    more = Counter({
        name: sum(check.unsupported(layer, case) is None for check, case in cells)
        for name, layer in function.with_one_more().items()
    })  # fmt: skip
    (name, count), *others = more.most_common()
    added = [
        f"a parameter {name} would add {count} cells",
        *(f"{n} {c}" for n, c in others if c),
    ]
    return [f"{function}: {', '.join(added)}"] if count else []
