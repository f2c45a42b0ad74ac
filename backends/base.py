"""What an adapter provides: a backend, its implementations, and calls prepared for the suite.

A third-party adapter subclasses `Backend` and `Implementation` and hands the backend object to
`pytest suite --backend=package.module:object`. The suite asks of an adapter:

- Values arrive as NumPy arrays that hold only numbers of the case's dtype; bfloat16 arrives as
  float32. `Backend.array` must give the framework's own array with exactly these values.
- `Implementation.prepare` does every conversion; the callable it returns does nothing but call the
  framework, so that what it raises is the framework's and what it takes is the framework's time.
- Forcing an implementation means that one or an error, never another one silently.
- What cannot be computed is declared, in `lacks` or by `unsupported`; nothing is approximated.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from backends.sources import Dialect
from suite.spec.catalogue import AnyCase
from suite.spec.dtypes import DType, round_to
from suite.spec.elections import QUESTIONS
from suite.spec.masks import Causal, Mask, Padding, Window
from suite.spec.problem import Inputs

OPERANDS = ("query", "key", "value", "bias")
"""What an answer can be differentiated by."""

ARRAYS = (*OPERANDS, "mask")
"""What a call is given as arrays."""

ARRANGEMENTS = {
    "contiguous": "C-contiguous",
    "reversed": "axes in reverse order in memory",
    "transposed": "the last two axes exchanged in memory",
    "inner-stride": "every second component of an array twice as wide, NaN between them",
    "offset": "a window out of a larger array, NaN around it",
    "expanded": "one sample with stride 0 along the batch",
    "expanded-heads": "one head with stride 0 along the heads",
    "scalar": "one number with stride 0 along every axis",
    "odd-strides": "axes of size 1 with strides that no contiguous array has",
}
"""How values can lie in memory; what the gaps hold must not matter."""

DIRECTIONS = ("forward", "backward", "forward+backward")
"""What is timed of a call: itself, its derivative alone once it was called, or both."""

EXPANDED = {"expanded": (0,), "expanded-heads": (1,), "scalar": (0, 1, 2, 3)}
"""The arrangements in which all slices along some axes lie in one place, with the axes."""

INNER = ("reversed", "transposed", "inner-stride")
"""The arrangements in which components do not lie side by side."""

_MEMORY = {"bhld": (0, 1, 2, 3), "blhd": (0, 2, 1, 3), "bhdl": (0, 1, 3, 2)}


class BackendUnavailable(Exception):
    """The framework is not installed, or failed to import; the message says why."""


class ForwardOnly(Exception):
    """What was computed cannot be differentiated; the message says why.

    `declared`: because the backend has no differentiation at all, and not because of the call.
    """

    def __init__(self, message: str, declared: bool = False) -> None:
        super().__init__(message)
        self.declared = declared


@dataclass
class Prepared:
    """A call made ready: `function(**arguments)` gives the framework's own output.

    `layout` is that of the output and of the operands, "bhld" (B, H, L, D) or "blhd" (B, L, H, D).
    `operands` says as which argument each of `ARRAYS` is passed, where it is passed. `backward` is
    the call's own derivative, for frameworks that have none: it takes the arguments and the cotangent
    and returns the gradients by argument; `forward` takes the arguments and `tangents` by argument
    and returns the output's. `within` makes the context the function is called in, which
    a compiler is not given: a choice of kernel, a thread count. `source` is the call as text: lines,
    imports and all, that compute `output` from variables called like the arguments. `constants` are
    the plain values that the function hangs on besides its arguments: where two calls of an
    implementation have equal ones, their functions are the same. None where that is not known.
    """

    function: Callable[..., Any]
    arguments: dict[str, Any] = field(default_factory=dict)
    layout: str = "bhld"
    operands: Mapping[str, str] = field(default_factory=lambda: {n: n for n in ARRAYS})
    backward: Callable[..., dict[str, Any]] | None = None
    forward: Callable[..., Any] | None = None
    within: Callable[[], AbstractContextManager[Any]] = nullcontext
    source: str = ""
    constants: tuple[Any, ...] | None = None

    def __call__(self) -> Any:
        return self.call(self.arguments)

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """The framework's own output for these arguments."""
        with self.within():
            return self.function(**arguments)

    def with_operands(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with other arrays for some of the operands."""
        return self.arguments | {self.operands[name]: array for name, array in arrays.items()}


class Backend(ABC):
    """A framework on one device, seen through its adapter.

    `name` is what --backend takes. The constructor imports the framework and raises
    BackendUnavailable with the reason where it cannot.
    """

    name: str
    devices: tuple[str, ...] = ("cpu",)
    has_strides = False
    narrow_reductions = False
    """Whether gradients are summed over broadcast axes in the case's dtype."""
    has_threads = False
    compilers: tuple[str, ...] = ()
    timed_compilers: tuple[str, ...] = ()
    """Of `compilers`, those that people deploy: the ones whose speed is measured."""
    layer_compilers: tuple[str, ...] = ()
    """Those of the compilers that layers go through, too."""
    shares_programs = True
    """Whether compiled programs can be kept side by side, for more calls than they were made for."""
    compiles_shapes = False
    dialect: Dialect | None = None

    def __init__(self, device: str = "cpu") -> None:
        if device not in self.devices:
            raise BackendUnavailable(
                f"{self.name} is judged on {', '.join(self.devices)} only, not on {device}"
            )
        self.device = device

    @property
    @abstractmethod
    def versions(self) -> dict[str, str]:
        """Versions by distribution name, the framework's own first."""

    @abstractmethod
    def implementations(self) -> list[Implementation]:
        """All implementations that exist on this device."""

    @abstractmethod
    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        """The framework's array with exactly these values, C-contiguous, on the device.

        `dtype` None keeps the NumPy dtype (boolean and integer masks, lengths).
        """

    def arranged(self, values: np.ndarray, dtype: DType | None, how: str) -> Any:
        """The framework's array with these values, in memory as `ARRANGEMENTS` says.

        Contiguous where the framework has no strides. Raises KeyError for an unknown arrangement, and
        ValueError where slices differ that are to be one (those of `EXPANDED`).
        """
        if how not in ARRANGEMENTS:
            raise KeyError(f"unknown arrangement {how!r}; valid: {', '.join(ARRANGEMENTS)}")
        if how == "contiguous" or not self.has_strides:
            return self.array(np.ascontiguousarray(values), dtype)
        axes = list(range(values.ndim))
        if how in ("reversed", "transposed"):
            order = axes[::-1] if how == "reversed" else [*axes[:-2], axes[-1], axes[-2]]
            made = self.array(np.ascontiguousarray(values.transpose(order)), dtype)
            return self.transpose(made, *order)
        gap = ~values if values.dtype == bool else np.full(values.shape, np.nan)
        if how == "inner-stride":
            return self.array(np.stack([values, gap], -1).reshape(*values.shape[:-1], -1), dtype)[
                ..., ::2
            ]
        if how == "offset":
            wide = np.concatenate([gap[..., :1], values, gap[..., :2]], -1)
            around = np.concatenate([~wide if wide.dtype == bool else wide * np.nan] * 2, -2)
            return self.array(np.concatenate([around, wide, around], -2), dtype)[
                ..., around.shape[-2] : around.shape[-2] + values.shape[-2], 1:-2
            ]
        if how in EXPANDED:
            one = values[tuple(slice(1 if a in EXPANDED[how] else None) for a in axes)]
            if not (values == one).all():
                raise ValueError("slices that lie in one place must be equal")
            return self.expand(self.array(np.ascontiguousarray(one), dtype), values.shape)
        return self.restrided(self.array(np.ascontiguousarray(values), dtype))

    @property
    def lacks(self) -> dict[str, str]:
        """The features that none of the backend's implementations has, with the reason."""
        found = {}
        if not self.has_strides:
            found["strides"] = f"arrays of {self.name} lie in memory as the framework likes"
        if not self.has_threads:
            found["threads"] = f"the number of threads of {self.name} is fixed once it has started"
        return found

    def threads(self, count: int) -> AbstractContextManager[None]:
        """A context in which calls run on `count` threads, where the backend has `has_threads`."""
        raise NotImplementedError

    def for_compilers(self) -> list[Implementation]:
        """Implementations that are judged through compilers alone."""
        return []

    def compiled(self, prepared: Prepared, compiler: str, batch: int) -> Prepared:
        """The call with its function through one of `compilers`, all else as it was; compiled when it is
        first called. `batch` is the number of samples."""
        raise NotImplementedError

    def signature(self, array: Any) -> tuple[Any, ...]:
        """What a compiler may have fixed of an array: shape and dtype, strides where there are any."""
        return (tuple(array.shape), self.dtype_name(array))

    def lacking_compiled(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        """The features an implementation loses in a compiler, with the reason; a dtype by its long name,
        and "compiled" where it cannot be compiled at all."""
        return {}

    def witness(self, prepared: Prepared) -> str:
        """Which kernels the call runs, in the framework's own words; empty where it does not say."""
        return ""

    def step(
        self, prepared: Prepared, direction: str, wrt: Sequence[str]
    ) -> Callable[[Mapping[str, Any], Any], Callable[[], Any]]:
        """What is timed: a function of the call's arguments and a cotangent that makes ready whatever is
        not part of the direction, and returns the rest as a function without arguments.

        `direction` is one of `DIRECTIONS`. What is timed returns the output ("forward"), or the pair of
        the output and the gradients by the operands `wrt`, without the output for "backward" alone.
        Raises ForwardOnly where the backend has no differentiation.
        """
        if direction == "forward":
            return lambda arguments, cotangent: lambda: prepared.call(arguments)
        raise ForwardOnly(f"{self.name} has no automatic differentiation", declared=True)

    def sync(self, outputs: Any) -> None:
        """Wait until all these outputs (arrays, and pairs and dictionaries of them) are computed."""
        return

    def compilations(self, prepared: Prepared) -> int | None:
        """A number that grows whenever the process, or the call's own function, traces or compiles.

        None where the framework does not say.
        """
        return None

    def ceiling(self, what: str, size: int, dtype: DType) -> tuple[Callable[[], Any], int]:
        """What the machine can do at best: a function that multiplies two square matrices of `size` rows
        ("gemm"), or copies an array of `size` elements ("copy"), and its operations or bytes."""
        shape = (size, size) if what == "gemm" else (size,)
        values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
        array = self.array(round_to(values, dtype), dtype)
        if what == "gemm":
            return self.multiplied(array), 2 * size**3
        return self.copied(array), 2 * size * dtype.itemsize

    def multiplied(self, array: Any) -> Callable[[], Any]:
        """A function that multiplies a matrix by itself as fast as the framework can."""
        return lambda: array @ array

    def copied(self, array: Any) -> Callable[[], Any]:
        """A function that reads an array once and writes as much."""
        return lambda: array.copy()

    def peak_bytes(self, call: Callable[[], Any], prepared: Prepared) -> int | None:
        """The most memory that one `call` holds at a time beyond what was there, as the framework's
        allocator counts it, or as the compiler of `prepared` planned it; None where neither says."""
        return None

    def device_seconds(self, call: Callable[[], Any]) -> float | None:
        """Seconds of one call by the device's own clock; None where it has none."""
        return None

    def cool(self) -> None:
        """Empty the device's caches of what lies in them, where that can be done."""
        return

    def expand(self, array: Any, shape: tuple[int, ...]) -> Any:
        """The array as one of `shape`, with stride 0 along the axis in which it has size 1 instead."""
        raise NotImplementedError

    def restrided(self, array: Any) -> Any:
        """The array with a stride of 7 elements along every axis of size 1."""
        raise NotImplementedError

    def differentiate(
        self, prepared: Prepared, wrt: Sequence[str], cotangent: Any
    ) -> tuple[Any, dict[str, Any]]:
        """The call's output and its gradients by operand, for a cotangent like the output.

        `wrt` names the operands that ask for a gradient; the others ask for none. An operand without
        influence has the gradient None. Raises ForwardOnly where the output cannot be differentiated.
        """
        raise ForwardOnly(f"{self.name} has no automatic differentiation", declared=True)

    def pushed(self, prepared: Prepared, tangents: Mapping[str, Any]) -> Any:
        """How the call's output moves as its operands move along `tangents`, by operand.

        Raises ForwardOnly where nothing is differentiated in this direction.
        """
        raise ForwardOnly(f"{self.name} is asked no directional derivatives", declared=True)

    @abstractmethod
    def to_numpy(self, array: Any) -> np.ndarray:
        """The array's values as float64 (bool and integers unchanged)."""

    @abstractmethod
    def is_array(self, value: Any) -> bool:
        """Whether `value` is an array of this framework."""

    @abstractmethod
    def dtype_name(self, array: Any) -> str:
        """Long dtype name: float64, float32, bfloat16, float16."""

    @abstractmethod
    def device_name(self, array: Any) -> str:
        """The device the array is on, as --device names it."""

    def transpose(self, array: Any, *axes: int) -> Any:
        """The array with its four axes in another order: a view where the framework has views."""
        return array.transpose(*axes)

    def function(self, function: Callable[..., Any], name: str, numerics: str) -> Implementation:
        """An implementation around a user's function with the framework's native signature.

        Raises TypeError, saying what was expected, where the signature does not fit.
        """
        raise TypeError(f"backend {self.name} has no native signature to judge a function by")

    def settled(self, layer: Any, dtype: DType) -> Any:
        """A user's layer in the dtype, on the device, switched to evaluation, where the framework's
        layers have these notions."""
        return layer

    def operands(self, inputs: Inputs, layout: str) -> tuple[Any, Any, Any]:
        """query, key and value as the framework's arrays in the axis order `layout`.

        Memory follows the case's own layout, so that where the two differ the arrays are transposed
        views in frameworks that have views.
        """
        return tuple(  # type: ignore[return-value]
            self.operand(x, inputs, layout) for x in (inputs.query, inputs.key, inputs.value)
        )

    def operand(self, values: np.ndarray, inputs: Inputs, layout: str) -> Any:
        """One (B, H, L, D) operand in the axis order `layout`, in memory as the case says."""
        if values.ndim != 4:
            return self.array(values, inputs.dtype)
        order = _MEMORY[inputs.layout]
        made = self.array(np.ascontiguousarray(values.transpose(order)), inputs.dtype)
        back = tuple(order.index(axis) for axis in _MEMORY[layout])
        return made if back == (0, 1, 2, 3) else self.transpose(made, *back)

    def __str__(self) -> str:
        return self.name


class Implementation(ABC):
    """One way in which a framework computes attention.

    Declared as data: `operator` (what it computes: only cases of this operator are asked), `numerics`
    (the class, or one per short dtype name), `elections` (question to answer, or to one answer per
    short dtype name; a question left out is observed, not held), `lacks` (feature to the reason it is
    missing), `dtypes`, `deterministic`, `exp_error` (per short dtype name, where exp is approximated
    and not rounded), `gradient_blocks` (per short dtype name, the rows and the keys after which running
    sums of gradients are stored in the dtype), `may_be_forward_only` (a user's function need not be
    differentiable), and `merges_mask_into_bias` (a mask beside a bias is passed as -inf in the bias, so
    that rows it empties follow the election minus-inf-row).
    """

    name: str
    operator = "sdpa"
    mode = "eager"
    dtypes: tuple[str, ...] = ("f64", "f32", "bf16", "f16")
    numerics: str | Mapping[str, str] = "eager"
    elections: Mapping[str, str | Mapping[str, str]] = {}
    lacks: Mapping[str, str] = {}
    deterministic = True
    exp_error: Mapping[str, float] = {}
    gradient_blocks: Mapping[str, tuple[int, int]] = {}
    may_be_forward_only = False
    merges_mask_into_bias = False

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        if backend.device != "cpu":
            # What is declared was verified on CPU: elsewhere answers are observed, and exp is exp.
            self.elections, self.exp_error, self.gradient_blocks = {}, {}, {}

    @abstractmethod
    def prepare(self, inputs: Any) -> Prepared:
        """Convert the inputs (`Inputs`, or a layer's `LayerInputs`) and return the call.

        Only the call may raise the framework's errors.
        """

    def prepare_anew(self, inputs: Any) -> Prepared:
        """`prepare`, with a program of its own where the call is compiled."""
        return self.prepare(inputs)

    def settle(self, passed: bool) -> bool:
        """The cell that these calls were prepared for is judged: keep what was compiled for it for other
        cells where it passed, forget it otherwise. Returns whether anything kept before took part."""
        return False

    def unsupported(self, case: AnyCase) -> str | None:
        """Why this case is not supported, or None. Reads declarations only; runs nothing."""
        if case.dtype.name not in self.dtypes:
            return f"dtype {case.dtype.long_name} is not supported"
        return self.missing(case.needs)

    def missing(self, features: Iterable[str]) -> str | None:
        """Why the implementation or its backend lacks one of the features; None where they have all."""
        every = {**self.backend.lacks, **self.lacks}
        return next((every[feature] for feature in features if feature in every), None)

    def numerics_for(self, dtype: DType) -> str:
        """The numerics class declared for a dtype."""
        return self.numerics if isinstance(self.numerics, str) else self.numerics[dtype.name]

    def elected(self, question: str, dtype: DType) -> str | None:
        """The declared answer to a question in a dtype; None where it is left to be observed."""
        if question not in QUESTIONS:
            raise KeyError(question)
        answer = self.elections.get(question)
        return answer if answer is None or isinstance(answer, str) else answer.get(dtype.name)

    def __str__(self) -> str:
        return f"{self.backend.name}:{self.name}"


@contextmanager
def set_to(value: Any, read: Callable[[], Any], write: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which a framework's setting has another value."""
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


def dense_arguments(backend: Backend, inputs: Inputs) -> dict[str, Any]:
    """query, key, value, mask and bias as the framework's arrays, heads before length; no flags.

    `mask` and `bias` are None where there is none.
    """
    query, key, value = backend.operands(inputs, "bhld")
    mask = dense_of(inputs, split_native(inputs)[1])
    return {
        "query": query,
        "key": key,
        "value": value,
        "mask": None if mask is None else backend.array(mask, None),
        "bias": None if inputs.bias is None else backend.array(inputs.bias, inputs.dtype),
    }


def rank4(array: np.ndarray) -> np.ndarray:
    """A mask or bias with leading axes of size 1, for interfaces that insist on rank 4."""
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def merged_bias(inputs: Inputs) -> np.ndarray | None:
    """Bias with -inf where the mask hides: for interfaces with one additive argument.

    Rank 4, or 2 where both parts are; float64. None where there is neither bias nor mask.
    """
    mask = inputs.dense_mask
    if mask is None:
        return inputs.bias
    added = np.where(mask, 0.0, -np.inf)
    return added if inputs.bias is None else np.where(mask, inputs.bias, -np.inf)


def split_native(
    inputs: Inputs, causal: bool = False, window: bool = False, lengths: bool = False
) -> tuple[dict[str, Any], list[Mask]]:
    """Divide a symbolic mask into what flags express and what must be passed densely.

    `causal`, `window`, `lengths` say which flags exist (and mean intersection with each other).
    Returns ({"causal": True, "window": Window, "lengths": Padding}, remaining masks). With the
    dense form, or a mask given as an array, nothing is native.
    """
    native: dict[str, Any] = {}
    rest: list[Mask] = []
    if inputs.mask is None:
        return native, rest
    for part in inputs.mask.parts:
        if inputs.form == "dense":
            rest.append(part)
        elif causal and isinstance(part, Causal) and not part.bottom_right:
            native["causal"] = True
        elif window and isinstance(part, Window) and "window" not in native:
            native["window"] = part
        elif lengths and isinstance(part, Padding) and not part.left:
            native["lengths"] = part
        else:
            rest.append(part)
    return native, rest


def dense_of(inputs: Inputs, rest: list[Mask]) -> np.ndarray | None:
    """The dense form of the masks that no flag expresses, or of the mask given as an array."""
    if inputs.mask_array is not None:
        return inputs.mask_array
    out: np.ndarray | None = None
    for mask in rest:
        block = mask.dense(inputs.sizes, inputs.seed)
        out = block if out is None else out & block
    return out


def lacking(accepted: frozenset[str], needed: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The features a user's function lacks, with the reason: `needed` maps parameters to features."""
    return {
        feature: f"the function has no parameter {parameter}"
        for parameter, features in needed.items()
        if parameter not in accepted
        for feature in features
    }


def accepted_parameters(
    function: Callable[..., Any], known: tuple[str, ...], positional: int, native: str
) -> frozenset[str]:
    """Which of the native signature's parameters a user's function accepts.

    Raises TypeError where it cannot take `positional` positional arrays or asks for more.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"cannot read the signature of {function!r}: {error}; expected that of {native}"
        ) from error
    parameters = signature.parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return frozenset(known)
    required = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    keyword_only = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is p.KEYWORD_ONLY and p.name not in known
    ]
    takes = [p for p in parameters.values() if p.kind is not p.KEYWORD_ONLY]
    enough = len(takes) >= positional or any(p.kind is p.VAR_POSITIONAL for p in takes)
    if not enough or len(required) > positional or keyword_only:
        raise TypeError(
            f"{getattr(function, '__name__', function)}{signature} does not fit; expected the "
            f"signature of {native}: {positional} arrays (query, key, value), then any of "
            f"{', '.join(known)} as keywords"
        )
    return frozenset(known) & frozenset(parameters)
