"""The engine of a backend: a framework's arrays, and what only some frameworks have.

An adapter implements the abstract methods. All others are optional: by default arrays have no strides and
no derivatives, nothing is compiled, and calls are synchronous and tell nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from re import Pattern
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from attention_conformance.backends.declared import Declared
from attention_conformance.backends.memory import (
    AXES,
    WINDOWS,
    Shape,
    layer_variables_of,
    wrong_memory,
)
from attention_conformance.backends.prepared import (
    ForwardOnly,
    Gradients,
    PreparedCall,
    Pullback,
    all_at_once,
)
from attention_conformance.suite.spec.dtypes import DType, round_to
from attention_conformance.suite.spec.inputs import Inputs
from attention_conformance.suite.spec.vocabulary import ARRANGEMENTS

if TYPE_CHECKING:
    from attention_conformance.backends.implementation import Implementation
    from attention_conformance.backends.protocol import Setting

Step = Callable[[Mapping[str, Any], Any], Callable[[], Any]]
"""The type that `Engine.timed_step` returns."""


class Engine(ABC):
    """A framework on one device: arrays, derivatives and settings. If the framework has them, also
    layouts of arrays, layers, compilers, threads, kernels and clocks."""

    name: str
    device: str

    # Arrays.

    @abstractmethod
    def array(self, values: np.ndarray, dtype: DType | None) -> Any:
        """Returns the framework's array with exactly these values, C-contiguous, on the device.

        `dtype` None keeps the NumPy dtype (boolean and integer masks, lengths).
        """

    @abstractmethod
    def to_numpy(self, array: Any) -> np.ndarray:
        """Returns the array's values as float64 (bool and integers unchanged)."""

    @abstractmethod
    def is_array(self, value: Any) -> bool:
        """True if `value` is an array of this framework."""

    @abstractmethod
    def dtype_name(self, array: Any) -> str:
        """Returns the long dtype name: float64, float32, bfloat16 or float16."""

    @abstractmethod
    def device_name(self, array: Any) -> str:
        """Returns the array's device, as an argument of --device."""

    # Derivatives.

    def vjp(self, prepared: PreparedCall, wrt: Sequence[str], cotangent: Any) -> Gradients:
        """Returns the call's output, and its gradients by operand for a cotangent with the output's
        shape.

        `wrt` names the operands and parameters to differentiate by. The gradient by an array without
        influence on the output is None. If query, key and value are one array, the gradient by the query
        is that of the whole array. Raises ForwardOnly if the output cannot be differentiated.
        """
        raise ForwardOnly(f"{self.name} has no automatic differentiation", declared=True)

    def pullback(self, prepared: PreparedCall, wrt: Sequence[str]) -> Pullback:
        """`vjp` in two steps. Returns the output, and the function from cotangents to gradients by
        operand.

        The function may be called several times, also after other forward passes. By default each call
        repeats the forward pass.
        """
        output = prepared.output(prepared.arguments)
        return output, lambda cotangent: self.vjp(prepared, wrt, cotangent)[1]

    def jvp(self, prepared: PreparedCall, tangents: Mapping[str, Any]) -> Any:
        """Returns the JVP of the call's output for `tangents` by operand. Raises ForwardOnly if the
        backend has no forward-mode differentiation."""
        raise ForwardOnly(f"{self.name} is asked no directional derivatives", declared=True)

    # State that calls must not change.

    @property
    def settings(self) -> Mapping[str, Setting]:
        """The framework's settings that affect other calls, by a printable name."""
        return {}

    def reseed(self, seed: int = 0) -> None:
        """Seed the framework's random generators, and restart its counters. Every cell begins with the
        default seed."""
        return

    # Layouts of arrays.

    has_strides = False
    """True if arrays have strides."""

    has_views = True
    """True if a transposed array is a view. Otherwise operands are made with the axes of the call."""

    def overwrite(self, array: Any, values: Any) -> bool:
        """Copy `values` into `array`, both arrays or variables. Returns False, and does nothing, if
        arrays are immutable."""
        if not hasattr(array, "assign"):
            return False
        array.assign(values)
        return True

    def layer_parameters(self, layer: Any) -> tuple[Any, ...]:
        """Returns the parameters of a user's layer that training changes in place; () if the layer is a
        function of its parameters."""
        return tuple(getattr(layer, "trainable_variables", ()))

    def layer_variables(self, layer: Any) -> dict[str, tuple[Any, str]]:
        """Returns (variable, order) of each learned variable of a layer by path of attributes
        ("query.kernel"), as defined. The order is "io" if a matrix' first axis is the inputs', "oi" if
        the last is, "" if unknown."""
        learned = {id(x) for x in self.layer_parameters(layer)}
        found = {path: x for path, x in layer_variables_of(layer) if id(x) in learned}
        return {path: (x, "io" if path.endswith("kernel") else "") for path, x in found.items()}

    def transpose(self, array: Any, *axes: int) -> Any:
        """Returns the array with permuted axes; a view if the framework has views."""
        return array.transpose(*axes)

    def view(self, flat: Any, shape: Shape, strides: Shape, offset: int) -> Any:
        """Returns a view of an array (n,), with `shape`, and with `strides` and `offset` in elements."""
        raise NotImplementedError

    def alias(self, array: Any) -> Any:
        """Returns a view of the whole array that has no reference to it; the array itself if the
        framework has no views."""
        return array

    def arranged(self, values: np.ndarray, dtype: DType | None, arrangement: str) -> Any:
        """Returns the framework's array with these values, in an arrangement of `ARRANGEMENTS`.

        It is contiguous if the framework has no strides. Raises KeyError for an unknown arrangement, and
        ValueError if values differ along an axis of stride 0 (`EXPANDED`).
        """
        return self.arranged_and_base(values, dtype, arrangement)[0]

    def arranged_and_base(
        self, values: np.ndarray, dtype: DType | None, arrangement: str
    ) -> tuple[Any, Any]:
        """Returns the array of `arranged`, and the array that it is a view of (itself if it is no
        view)."""
        if arrangement not in ARRANGEMENTS:
            raise KeyError(f"unknown arrangement {arrangement!r}; valid: {', '.join(ARRANGEMENTS)}")
        if arrangement == "contiguous" or not self.has_strides:
            array = self.array(np.ascontiguousarray(values), dtype)
            return array, array
        shape, window_of = WINDOWS[arrangement](values.shape)
        larger = wrong_memory(shape, values, dtype)
        window = window_of(larger)
        window[...] = values
        if not (window == values).all():
            raise ValueError("slices that lie in one place must be equal")
        flat = self.array(larger.ravel(), dtype)
        return self.window(flat, larger, window), flat

    def window(self, flat: Any, larger: np.ndarray, window: np.ndarray) -> Any:
        """Returns the view of the framework's array `flat` (n,) that lies in it as `window` lies in the
        contiguous array `larger`."""
        offset, remainder = divmod(window.ctypes.data - larger.ctypes.data, larger.itemsize)
        assert not remainder
        strides = tuple(step // larger.itemsize for step in window.strides)
        return self.view(flat, window.shape, strides, offset)

    def operands(self, inputs: Inputs, axis_order: str) -> tuple[Any, Any, Any]:
        """Returns query, key and value as the framework's arrays, (B, H, L, D) or (B, L, H, D).

        Their memory has the case's axis order. If this differs from `axis_order`, the arrays are
        transposed (views, if the framework has views).
        """
        query, key, value = (
            self.operand(x, inputs, axis_order) for x in (inputs.query, inputs.key, inputs.value)
        )
        return query, key, value

    def operand(self, values: np.ndarray, inputs: Inputs, axis_order: str) -> Any:
        """Returns one operand (B, H, L, D) in an axis order; its memory has the case's axis order.

        The axes of an array of another rank are not permuted.
        """
        if values.ndim != 4:
            return self.array(values, inputs.dtype)
        if not self.has_views:
            return self.array(values.transpose(AXES[axis_order]), inputs.dtype)
        order = AXES[inputs.axis_order]
        array = self.array(np.ascontiguousarray(values.transpose(order)), inputs.dtype)
        back = tuple(order.index(axis) for axis in AXES[axis_order])
        return array if back == (0, 1, 2, 3) else self.transpose(array, *back)

    def placed_layer(self, make: Callable[[], Any], dtype: DType, training: bool = False) -> Any:
        """Returns the new layer `make()`, converted to dtype, device and mode (training or evaluation),
        if the framework's layers can be converted."""
        return make()

    # Compilers.

    compilers: tuple[str, ...] = ()
    """All compilers."""
    timed_compilers: tuple[str, ...] = ()
    """Compilers for deployment, whose speed is measured."""
    layer_compilers: tuple[str, ...] = ()
    """Compilers through which layers are also judged."""
    compiles_shapes = False
    """True if calls, also in eager mode, are compiled for every new shape."""
    runs_models = False
    """True if every call, also of textbook code, becomes a model that the runtime rewrites."""
    ambient: Mapping[str, str] = {}
    """Names of transformations that users' programs apply around calls; no answer may depend on them. By
    name, the election question whose answer "raises" allows an error."""

    def compilers_of(self, implementation: Implementation) -> tuple[str, ...]:
        """Returns the compilers through which an implementation is judged; () for costly kernels, which
        are interpreted or run in several processes."""
        if "kernels" in implementation.postponed:
            return ()
        return self.layer_compilers if implementation.operator.is_layer else self.compilers

    def only_compiled(self) -> list[Implementation]:
        """Returns implementations that are judged only through compilers."""
        return []

    def compiled(self, prepared: PreparedCall, compiler: str, batch: int) -> PreparedCall:
        """Returns the call with its function compiled by one of `compilers`, at the first call. `batch`
        is the number of samples."""
        raise NotImplementedError

    def recomputed(
        self, prepared: PreparedCall, rate: float, compiler: str
    ) -> dict[str, PreparedCall]:
        """Returns by name calls that drop weights at `rate` and compute the forward pass again in the
        backward pass. `prepared` drops nothing; `compiler` is "" in eager mode."""
        return {}

    def dropout(self, rate: float) -> Callable[[Any], Any]:
        """Returns a function that drops elements of an array at this rate, as a layer of dropout does."""
        raise NotImplementedError

    def gradient_call(self, prepared: PreparedCall, operand: str, cotangent: Any) -> PreparedCall:
        """Returns the call whose output is the gradient by one operand, for a cotangent of the output."""

        def gradient(**arguments: Any) -> Any:
            call = replace(prepared, arguments=arguments)
            return self.pullback(call, (operand,))[1](cotangent)[operand]

        return replace(prepared, function=gradient, outputs=("output",), vjp=None)

    def declared_through(self, implementation: Implementation, compiler: str) -> Declared:
        """Returns the declaration of an implementation in a compiler, by default unchanged. A compiler
        may round less, but must not change elections."""
        return implementation.declared

    def lacking_through(self, implementation: Implementation, compiler: str) -> dict[str, str]:
        """Returns the features that a compiler lacks for an implementation, with reasons. Other keys: the
        long name of an unsupported dtype, and "compiled" if nothing can be compiled."""
        return {}

    def surroundings(self, dtype: DType) -> Callable[[], AbstractContextManager[Any]]:
        """Returns a function that makes the context in which users' programs run with arrays of a dtype.
        By default the context changes nothing."""
        return nullcontext

    def raised_inside(self, error: BaseException) -> BaseException:
        """Returns the original error if a compiler wraps errors of the compiled function; otherwise
        `error`."""
        return error

    def as_program(self, function: Implementation, prepared: PreparedCall) -> PreparedCall:
        """Returns the call of a user's function, by default unchanged. A backend of `quick` may compile
        the whole function to one program. `PreparedCall.constants` tells it which calls share this
        program."""
        return prepared

    def quick(self) -> Self | None:
        """Returns the same backend with reduced optimisation, which compiles faster; None if there is
        none. The speed of such a backend is never measured."""
        return None

    # Calls.

    has_threads = False
    """True if the number of threads of a call can be chosen."""
    attention_functions: tuple[str, ...] = ()
    """Functions of the engine that compute attention; untrusted code must not call them."""

    def threads(self, count: int) -> AbstractContextManager[None]:
        """A context in which calls run on `count` threads. Only if `has_threads`."""
        raise NotImplementedError

    def at_once(self, calls: Sequence[Sequence[PreparedCall]], rounds: int) -> list[list[Any]]:
        """Returns a list of outputs for each thread, which makes its `calls` in turn. If a thread raised,
        its last entry is the error.

        Each thread continues until all have made all their calls `rounds` times, so that they overlap. It
        waits for each output (`sync`): some frameworks compute arrays only when they are read.
        """
        return all_at_once(calls, rounds, self.sync)

    def kernels(self, prepared: PreparedCall) -> str:
        """Returns the framework's names of the call's kernels; "" if the framework does not tell."""
        return ""

    def operator_pattern(self, function: Any) -> Pattern[str] | None:
        """Returns the pattern of the names by which `recorded_operators` reports a function of the
        framework; None if the function is no operator."""
        return None

    def recorded_operators(
        self, call: Callable[[], Any], threads: bool
    ) -> tuple[Any, Iterable[str]]:
        """Returns the value of a call, and the names of the operators that it ran, as far as known: in
        this thread, or with `threads` in all threads of Python."""
        return call(), ()

    def private_ways(self, name: str) -> Sequence[str]:
        """Returns dotted names of private functions through which code can call the function `name`."""
        return ()

    def guard_recording(self) -> None:
        """From now on functions that would stop the recording of operators raise ForbiddenCall."""
        return

    def derive_by(self, output: Any, make: Callable[[Callable[[], Any]], Any]) -> None:
        """Let `make(call)` make the calls that compute derivatives of `output`, if the framework can."""
        return

    def is_tracing(self) -> bool:
        """True while a compiler of the framework traces Python code, without running operators."""
        return False

    def sync(self, outputs: Any) -> None:
        """Wait until these outputs (arrays, or tuples and dictionaries of arrays) are computed."""
        return

    def timed_step(self, prepared: PreparedCall, direction: str, wrt: Sequence[str]) -> Step:
        """Returns a function of the call's arguments and a cotangent, which does the untimed preparation.
        It returns the timed function, which has no arguments.

        `direction` is one of `DIRECTIONS`. The timed function returns the output ("forward"), or (output,
        gradients by `wrt`); with "backward" the output is None. Raises ForwardOnly if the backend has no
        differentiation.
        """
        if direction == "forward":
            return lambda arguments, cotangent: lambda: prepared.call(arguments)
        raise ForwardOnly(f"{self.name} has no automatic differentiation", declared=True)

    def compilations(self, prepared: PreparedCall) -> int | None:
        """Returns a number that increases with every trace or compilation in the process or of the call's
        function; None if the framework does not tell."""
        return None

    def machine_limit(self, what: str, size: int, dtype: DType) -> tuple[Callable[[], Any], int]:
        """Returns a function that shows the machine's limit, and its operations or bytes: "gemm"
        multiplies two square matrices of `size` rows, "copy" copies an array of `size` elements."""
        shape = (size, size) if what == "gemm" else (size,)
        values = np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape)
        array = self.array(round_to(values, dtype), dtype)
        if what == "gemm":
            return self.multiplied(array), 2 * size**3
        return self.copied(array), 2 * size * dtype.itemsize

    def multiplied(self, array: Any) -> Callable[[], Any]:
        """Returns a function that multiplies a matrix by itself as fast as the framework can."""
        return lambda: array @ array

    def copied(self, array: Any) -> Callable[[], Any]:
        """Returns a function that reads an array once and writes a copy."""
        return lambda: array.copy()

    def peak_bytes(self, call: Callable[[], Any], prepared: PreparedCall) -> int | None:
        """Returns the additional peak memory of one `call` in bytes, as counted by the framework's
        allocator or planned by the compiler of `prepared`; None if unknown."""
        return None
