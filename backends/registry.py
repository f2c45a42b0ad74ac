"""The registry: names and aliases of backends, and loading of backends and users' functions."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attention_conformance.backends.claims import Claims, claim_value
from attention_conformance.backends.declared import THROUGH, checked_name
from attention_conformance.backends.forbidden import note_calls
from attention_conformance.backends.protocol import (
    ENDS,
    Backend,
    BackendUnavailable,
    BrokenFramework,
    Implementation,
    UsageError,
)
from attention_conformance.backends.sources import JUDGED, home_of
from attention_conformance.backends.user.cached import UserCached
from attention_conformance.backends.user.layer import UserLayer
from attention_conformance.backends.user.operators import SIGNATURES, UserOperator
from attention_conformance.suite.spec.claims import MARK
from attention_conformance.suite.spec.operators import computed_like
from attention_conformance.suite.spec.operators.cached import CACHED

GROUP = "attention_conformance.backends"
"""The group of entry points (NAME = "module:object") by which a distribution registers backends."""

REGISTRY = {
    "numpy": f"{GROUP}._numpy.backend:NumpyBackend",
    "torch": f"{GROUP}._torch.backend:TorchBackend",
    "tf": f"{GROUP}._tensorflow.backend:TensorflowBackend",
    "jax": f"{GROUP}._jax.backend:JaxBackend",
    "keras-torch": f"{GROUP}._keras.on_torch:KerasTorchBackend",
    "keras-jax": f"{GROUP}._keras.on_jax:KerasJaxBackend",
    "keras-numpy": f"{GROUP}._keras.on_numpy:KerasNumpyBackend",
}
"""The backends that need no entry point: "module:object" by name."""

ALIASES = {"tensorflow": "tf", "pytorch": "torch"}


@cache
def registered() -> Mapping[str, str]:
    """Returns "module:object" of every backend by name: those of `REGISTRY`, and those that installed
    distributions register. Imports no backend."""
    entries = sorted(entry_points(group=GROUP), key=lambda entry: entry.name)
    return REGISTRY | {entry.name: entry.value for entry in entries if entry.name not in REGISTRY}


def canonical(name: str) -> str:
    """Returns the registered name for a name or alias. A third-party "module:object" is returned
    unchanged.

    Raises UsageError with the valid names.
    """
    name = ALIASES.get(name, name)
    if name not in registered() and ":" not in name:
        valid = ", ".join([*registered(), *ALIASES, "all"])
        raise UsageError(f"unknown backend {name!r}; valid: {valid}, or module:object")
    return name


def installed() -> list[str]:
    """Returns the registered backends whose modules are installed. Imports no framework."""

    def can_be_loaded(name: str) -> bool:
        with suppress(UsageError):
            return all(map(find_spec, modules(name)))
        return False

    return [*filter(can_be_loaded, registered())]


def modules(name: str) -> tuple[str, ...]:
    """Returns the modules that must be installed for a registered backend; () for an unregistered one."""
    return _class_attribute(name, "modules", ())


def keras_engine(name: str) -> str:
    """Returns the engine of Keras that a registered backend needs; "" if it does not use Keras."""
    return _class_attribute(name, "engine_of_keras", "")


def _class_attribute(name: str, attribute: str, default: Any) -> Any:
    """Returns an attribute of the class or function that makes a registered backend, which is not
    called."""
    place = registered().get(name)
    return getattr(load_object(place, "a backend object"), attribute, default) if place else default


def judged_together(names: list[str]) -> list[str]:
    """Returns those of `names` that fit in one process: backends without Keras, and those with the engine
    of the first backend with Keras."""
    engine = next(filter(None, map(keras_engine, names)), "")
    return [name for name in names if keras_engine(name) in ("", engine)]


def check_one_engine(names: list[str]) -> None:
    """Raise UsageError if the backends need Keras with different engines: a process has only one."""
    engines = {name: engine for name in names if (engine := keras_engine(name))}
    if len(set(engines.values())) > 1:
        listed = ", ".join(f"{n} (Keras on {engine})" for n, engine in engines.items())
        raise UsageError(
            f"{listed} cannot share a process: KERAS_BACKEND is process-global; run them one by one"
        )


def load(name: str, device: str = "cpu") -> Backend:
    """Returns the backend called `name` on `device`.

    Raises UsageError for an unknown name or an invalid declaration, BackendUnavailable if the framework
    is not installed or lacks the device, BrokenFramework if an installed framework cannot be imported.
    """
    name = canonical(name)
    backend = load_object(registered().get(name, name), "a backend object")
    if isinstance(backend, type) or (callable(backend) and not isinstance(backend, Backend)):
        backend = _make_backend(backend, name, device)
    if not isinstance(backend, Backend):
        raise UsageError(
            f"{name} is {type(backend).__name__}, expected a Backend of `attention_conformance.adapter`, "
            "or a function of the device that returns one"
        )
    checked_name("a backend", backend.name)
    return backend


def _make_backend(make: Callable[[str], Any], name: str, device: str) -> Any:
    """Returns the object that a class or function makes for the device. Raises as `load`."""
    modules_needed, engine = getattr(make, "modules", ()), getattr(make, "engine_of_keras", "")
    if engine:
        os.environ.setdefault("KERAS_BACKEND", engine)
    try:
        return make(device)
    except (UsageError, *ENDS):
        raise
    except BackendUnavailable as error:
        # sys.modules lacks a module whose import failed. Without a cause no import was tried.
        import_failed = any(module not in sys.modules for module in modules_needed)
        if error.__cause__ is None or not import_failed or not all(map(find_spec, modules_needed)):
            raise
        raise BrokenFramework(f"installed, and failed to import: {error}") from error
    except SystemExit as error:
        raise BrokenFramework(
            f"installed, and ended the process as it was imported: exit code {error.code}"
        ) from error
    except BaseException as error:
        raise UsageError(
            f"calling {name} for a backend failed with {type(error).__name__}: {error}"
        ) from error


def without_framework(name: str, device: str) -> Backend:
    """Returns a backend that lists its implementations, and calls none. A registered backend is made
    without its constructor, which imports the framework. Raises as `load`."""
    name = canonical(name)
    kind = load_object(registered()[name], "a backend object") if name in registered() else None
    if not isinstance(kind, type):
        return load(name, device)
    backend: Backend = object.__new__(kind)
    backend.device = device
    return backend


def implementations(backend: Backend) -> list[Implementation]:
    """Returns the implementations of a backend. Raises DeclarationError for an invalid name."""
    entries = list(backend.implementations())
    for implementation in entries:
        extra = THROUGH if implementation.mode == "compiled" else ""
        checked_name("an implementation", implementation.name, extra)
    return entries


FOLDERS: set[str] = set()
"""The folders of users' files. They stand first on `sys.path`."""


def _make_importable(folder: Path) -> None:
    """Let a user's file import the modules in its folder, as Python does for a script.

    Raises UsageError if a module has the name of an imported module from another user's folder.
    """
    for neighbour in sorted(folder.iterdir()):
        file = getattr(sys.modules.get(neighbour.stem), "__file__", None) or neighbour
        home = Path(file).parent if Path(file).name != "__init__.py" else Path(file).parents[1]
        if str(home) in FOLDERS - {str(folder)}:
            raise UsageError(
                f"{neighbour} has the name of {file}, which is imported: judge the two in two runs"
            )
    if str(folder) not in FOLDERS:
        FOLDERS.add(str(folder))
        sys.path.insert(0, str(folder))


def load_object(text: str, what: str) -> Any:
    """Returns the object named by "PATH.py:NAME" or "module:NAME". `what` names the object in messages.

    A file may import its neighbours, and belong to a package. Raises UsageError if the file, module or
    name does not exist, or if the import fails.
    """
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UsageError(f"expected PATH.py:NAME or module:NAME for {what}, got {text!r}")
    if Path(place).is_file() and not place.endswith(".py"):
        raise UsageError(f"{what} {text!r}: {place} is no Python file: expected PATH.py:NAME")
    try:
        if place.endswith(".py"):
            path = Path(place)
            if not path.is_file():
                raise UsageError(f"{what} {text!r}: there is no file {place}")
            folder, package = home_of(path)
            _make_importable(folder)
            name_of_module = f"{package}.{JUDGED}{path.stem}".lstrip(".")
            spec = importlib.util.spec_from_file_location(name_of_module, path)
            assert spec is not None, "a file that ends in .py is Python source"
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[module.__name__] = module
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    except (UsageError, *ENDS):
        raise
    except BaseException as error:
        raise UsageError(
            f"{what} {text!r}: importing {place} failed with {type(error).__name__}: {error}"
        ) from error
    if not _has_attribute(module, name, f"{what} {text!r}"):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UsageError(
            f"{what} {text!r}: {place} has no {name!r}; it has {', '.join(public) or 'no functions'}"
        )
    return getattr(module, name)


def _has_attribute(target: Any, name: str, who: str) -> bool:
    """True if a user's object has an attribute. Raises UsageError if its `__getattr__` raises another
    error than AttributeError."""
    try:
        return hasattr(target, name)
    except Exception as error:
        raise UsageError(
            f"{who}: reading {name!r} raised {type(error).__name__}: {error}; `__getattr__` raises "
            "AttributeError for names that do not exist"
        ) from error


def check_function(function: Any, text: str) -> None:
    """Raise UsageError if an object cannot be a user's function. Messages call the object `text`."""
    kinds = {
        "an async function": inspect.iscoroutinefunction,
        "a generator function": inspect.isgeneratorfunction,
    }
    _has_attribute(function, MARK, f"function {text}")
    for kind, is_kind in kinds.items():
        if is_kind(function):
            raise UsageError(f"function {text} is {kind}: expected one that returns an array")


def function_implementation(
    backend: Backend, text: str, option_claims: Mapping[str, Any], like: str = ""
) -> tuple[Implementation, Claims]:
    """Returns the implementation of the user's function named by `text` (see `load_object`), and its
    claims: by options (`option_claims`), and attached to the function.

    `like` names the layer that the function makes, or the function's operator; "" is plain attention.
    Raises UsageError if the function cannot be imported or called, has another signature or an invalid
    name, or if a claim is invalid.
    """
    function = load_function(backend, text, option_claims)
    return callable_implementation(
        backend, function, text.rpartition(":")[2], option_claims, like, text
    )


def example(backend: Backend) -> Implementation | None:
    """Returns the implementation of a minimal user's function; None if the framework has no native
    signature."""
    try:
        return backend.function(lambda query, key, value: value, "any", Claims())
    except TypeError:
        return None


def attention_names(backend: Backend) -> tuple[str, ...]:
    """Returns the dotted names of the attention functions of a framework and its engine, the native one
    first."""
    place = getattr(getattr(example(backend), "native", None), "function", None)
    native = (place,) if isinstance(place, str) and "." in place else ()
    return tuple(dict.fromkeys((*native, *backend.attention_functions)))


def load_function(backend: Backend, text: str, option_claims: Mapping[str, Any]) -> Any:
    """Returns the user's function named by `text`. Before its file is imported, the functions that the
    claim `forbid` in `option_claims` names are made to note their calls. Raises UsageError."""
    try:
        note_calls(backend, claim_value("forbid", option_claims.get("forbid", ())))
    except ValueError as error:
        raise UsageError(f"a claim cannot be used: {error}") from error
    return load_object(text, "function")


def callable_implementation(
    backend: Backend,
    function: Any,
    name: str,
    option_claims: Mapping[str, Any],
    like: str = "",
    text: str = "",
) -> tuple[Implementation, Claims]:
    """Returns the result of `function_implementation` for a function object. Messages call it `text`."""
    text, operator = text or name, computed_like(like) if like else None
    if not callable(function) and operator is not CACHED:
        raise UsageError(
            f"function {text!r} is {type(function).__name__}, not callable; expected a function, a "
            "class or a module"
        )
    check_function(function, repr(text))
    try:
        claims = Claims.of(function, option_claims, like or "sdpa")
        if operator is CACHED:
            return UserCached(backend, function, name, claims), claims
        if operator in SIGNATURES:
            return UserOperator(backend, function, name, claims, SIGNATURES[operator]), claims
        if like:
            if claims.forbid:
                raise UsageError("forbid is a claim of functions, not of layers")
            return UserLayer(backend, function, name, claims, like), claims
        return backend.function(function, name, claims), claims
    except UsageError as error:
        raise UsageError(f"function {text!r}: {error}") from error
    except Exception as error:
        if not like and not isinstance(error, TypeError):
            raise
        raise UsageError(f"function {text!r}: {error}") from error
