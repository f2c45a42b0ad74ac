"""Loading: backends, implementations and user functions, from the names that the options give.

An invalid name is a UsageError that lists the valid ones.
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
from attention_conformance.suite.run.isolation import function as isolated_function
from attention_conformance.suite.run.isolation.remote import Remote, isolated
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.process import time_limit
from attention_conformance.suite.run.suggestions import suggestion
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.text import valid_names


@dataclass(frozen=True)
class UserCode:
    """User functions as Python objects.

    - `callables`: the objects, by the names that the options use for them
    - `claimed`: claims about them, in addition to those of the options (`suite.spec.claims.CLAIMS`)
    """

    callables: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    claimed: Mapping[str, Any] = field(default_factory=dict)


NO_USER_CODE = UserCode()
"""No objects: the options name functions in files."""


@dataclass(frozen=True)
class LoadedBackend:
    """A backend with its implementations and expected failures.

    - `implementations`: all that are judged
    - `functions`: the user functions among them, with their compiled forms
    - `natives`: the framework's own implementations if user functions are judged; else empty
    - `manifest`: the expected failures of all implementations that are no user functions
    - `function_manifest`: the expected failures of user functions, read from the files `expect`
    - `notes`: sentences for people
    """

    backend: Backend
    implementations: tuple[Implementation, ...]
    functions: tuple[Implementation, ...]
    natives: tuple[Implementation, ...]
    manifest: Manifest
    function_manifest: Manifest
    expect: tuple[Path, ...]
    notes: tuple[str, ...]

    def expected_of(self, implementation: Implementation) -> Manifest:
        """Returns the manifest of expected failures that applies to an implementation."""
        return self.function_manifest if implementation in self.functions else self.manifest


OnDeath = Callable[[str], object]
"""A function that stores the sentence to print if the process dies from now on."""


def ignore_death(death: str) -> None:
    """Discard the sentence: no other process watches this one."""


def load_backends(
    options: Options, user: UserCode, on_death: OnDeath
) -> tuple[list[LoadedBackend], dict[str, BackendUnavailable]]:
    """Import the frameworks, select implementations, and make trial calls of user functions. Returns the
    loaded backends, and by name the errors of backends that "all" includes and that cannot be loaded.
    Raises UsageError."""
    required = {registry.canonical(name) for name in options.backend if name != "all"}
    loaded: list[LoadedBackend] = []
    unavailable: dict[str, BackendUnavailable] = {}
    for name in options.backends:
        try:
            with importing(options):
                backend = None if options.isolates else registry.load(name, options.device)
            loaded.append(load_backend(backend, options, user, on_death))
        except BackendUnavailable as error:
            if name in required:
                raise UsageError(f"backend {name} cannot be used: {error}") from error
            unavailable[name] = error
    if options.implementation:
        loaded = _only_named(loaded, options.implementation)
    if not any(one.implementations for one in loaded):
        reasons = {name: str(error) for name, error in unavailable.items()}
        raise UsageError(f"no implementation to judge; unavailable: {reasons}")
    return loaded, unavailable


@contextmanager
def importing(options: Options) -> Iterator[None]:
    """A context for the import of frameworks and users' files. Raises UsageError after
    --start-timeout."""
    try:
        with time_limit(options.start_timeout, "importing frameworks and kernels"):
            yield
    except TimeOver as error:
        longer = "; --start-timeout gives it longer" if error.kind == "timeout" else ""
        raise UsageError(f"{error}{longer}") from error


def load_backend(
    backend: Backend | None,
    options: Options,
    user: UserCode = NO_USER_CODE,
    on_death: OnDeath = ignore_death,
) -> LoadedBackend:
    """Load the user functions of the options and make trial calls; without user functions load the
    backend's implementations. For isolated functions `backend` is ignored: each function has a backend in
    its own child process. Raises UsageError, and BackendUnavailable for isolated functions."""
    backends: list[Any] = [backend] * len(options.function)
    if options.isolates:
        with importing(options):
            backends = [isolated(options, text) for text in options.function]
            backend = backends[0].without_user_code
    assert backend is not None
    quick_backend = backend.quick() if options.compiles_quickly else None
    quick_natives = None if options.function else quick_backend
    natives = registry.implementations(quick_natives or backend)
    if quick_natives is not None:
        for native, optimized in zip(natives, registry.implementations(backend), strict=True):
            native.optimized = optimized
    functions: list[Implementation] = []
    notes: list[str] = []
    manifest_files: list[Path] = []
    for text, own_backend in zip(options.function, backends, strict=True):
        is_traced = options.compiles_quickly and options.mode == "eager" and ".py:" in text
        with leaks.without_warnings(), importing(options):
            settings = leaks.Settings(own_backend)
            try:
                traced: Implementation | None = None
                if quick_backend is not None and is_traced:
                    # A module of its own: what the function stores while JAX traces it stays there.
                    traced, _ = user_function(quick_backend, text, options, user)
                function, files = user_function(own_backend, text, options, user)
            finally:
                changes = settings.restore()
        try_out(text, function, options.cell_timeout, on_death)
        if isinstance(function, UserCallable) and isinstance(traced, UserCallable):
            function = function.quickly(traced)
        elif isinstance(own_backend, Remote) and is_traced:
            with importing(options):
                function = isolated_function.quickly(own_backend, function, text)
        functions.append(function)
        notes += [f"{function}: {remark}" for remark in function.remarks]
        notes += parameters_found(function)
        notes += [
            f"importing {text} left {change}; cells are judged with what was" for change in changes
        ]
        if isinstance(own_backend, Remote):
            notes += [f"{function}: {sentence}" for sentence in own_backend.link.unenforced]
        manifest_files += [path for path in files if path not in manifest_files]
    judged = functions + (natives if options.implementation or not options.function else [])
    compiled = [] if options.mode == "eager" else compiled_forms(backend, judged)
    functions += [form for form in compiled if form.inner in functions]
    judged = [*(judged if options.mode != "compiled" else []), *compiled]
    duplicates = [name for name, count in Counter(i.name for i in judged).items() if count > 1]
    if duplicates:
        raise UsageError(f"two implementations of {backend.name} are called {duplicates[0]!r}")
    try:
        entries = load(Path(backend.expectations))
        if not options.function:
            entries += [entry for path in options.expect for entry in load_named(path)]
        function_entries = [entry for path in manifest_files for entry in load_named(path)]
    except ExpectationError as error:
        raise UsageError(str(error)) from error
    return LoadedBackend(
        backend, tuple(judged), tuple(functions), tuple(natives if options.function else ()),
        Manifest(entries, backend.versions, backend.device),
        Manifest(function_entries, backend.versions, backend.device), tuple(manifest_files), tuple(notes),
    )  # fmt: skip


def user_function(
    backend: Backend, text: str, options: Options, user: UserCode = NO_USER_CODE
) -> tuple[Implementation, Sequence[Path]]:
    """Returns the user function that the options call `text`, and the paths of the manifests that its
    claims name. Raises UsageError."""
    claimed = {**options.claims, **user.claimed}
    if isinstance(backend, Remote):
        function, claims = isolated_function.load(
            backend, text, claimed, options.like, options.untrusted
        )
    elif text in user.callables:
        function, claims = registry.callable_implementation(
            backend, user.callables[text], text, claimed, options.like
        )
    else:
        function, claims = registry.function_implementation(backend, text, claimed, options.like)
    return function, claims.expect


def _only_named(loaded: Sequence[LoadedBackend], names: Sequence[str]) -> list[LoadedBackend]:
    """Returns the backends, reduced to user functions and the implementations of these names ("sdpa" or
    "torch:sdpa"). Raises UsageError for an unknown name."""

    def names_of(i: Implementation) -> set[str]:
        return {i.name, str(i)} | (names_of(i.inner) if isinstance(i, Compiled) else set())

    implementations = [i for one in loaded for i in one.implementations]
    unknown = sorted(set(names).difference(*map(names_of, implementations)))
    if unknown:
        valid = valid_names(unknown[0], map(str, implementations))
        raise UsageError(f"unknown implementation {', '.join(unknown)}{valid}")
    return [
        replace(one, implementations=tuple(
            i for i in one.implementations if names_of(i) & set(names) or i in one.functions
        ))
        for one in loaded
    ]  # fmt: skip


def try_out(text: str, function: Implementation, seconds: float, on_death: OnDeath) -> None:
    """Make trial calls of a user function, each for at most `seconds`. The calls also bind its arguments.
    `text` names the function in messages. Raises UsageError if the function cannot be judged."""
    subject = f"function {text!r}"

    @contextmanager
    def calling(case: Case) -> Iterator[None]:
        on_death(f"{subject} killed the process in its trial call on {case.id}")
        with time_limit(seconds, f"its trial call on {case.id}"):
            yield
        on_death("")

    reason = trial(function, calling, suggestion)
    if reason is not None:
        raise UsageError(f"{subject}: {reason}")


def parameters_found(function: Implementation) -> list[str]:
    """Returns a list of one note: how the parameters of a user's layer were found. [] for a function."""
    text = getattr(function, "parameters_found", "")
    return [f"{function}: {text}"] if text else []


def lacking_parameters(function: Implementation, level: str) -> list[str]:
    """Returns a list of one note: which additional parameters of a user's layer would make unsupported
    cells of a level supported, and how many cells each. [] for a function, or if none would."""
    if not isinstance(function, UserLayer):
        return []
    cells = [
        (check, cell.case)
        for check in all_checks().values()
        for cell in check.cells(level, [function])
        if check.unsupported(function, cell.case) is not None
    ]
    added_cells = Counter({
        name: sum(check.unsupported(layer, case) is None for check, case in cells)
        for name, layer in function.with_one_more().items()
    })  # fmt: skip
    (name, count), *further = added_cells.most_common()
    texts = [
        f"a parameter {name} would add {count} cells",
        *(f"{other_name} {cells}" for other_name, cells in further if cells),
    ]
    return [f"{function}: {', '.join(texts)}"] if count else []
