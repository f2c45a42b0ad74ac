"""Messages between the parent, which judges, and the child, which runs a user's function.

The child trusts the parent: a request is a pickle. The parent trusts no answer. An answer has two parts
of limited length: MessagePack, which is decoded as one of the types here or refused, and the bytes of an
array. The number of bytes must fit the claimed dtype and shape. An object that stays in the child is sent
as `Reference`, a number with claims.

execnet keeps no such limit. In release 2.1.2 a worker's header of 9 bytes makes the coordinator read
2 GiB, and a list's length in a payload of 6 bytes makes it allocate up to 16 GiB. Here `MOST` is checked
before a part is read, and the decoder refuses a length beyond the message; `tests/test_isolation.py`
sends both attacks.
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Sequence
from typing import Annotated, Any, BinaryIO, Literal, cast

import numpy as np
from msgspec import Meta, Struct

from attention_conformance.backends.declared import AS_CLASS, DeclaredRounding
from attention_conformance.backends.user.observing import Facts
from attention_conformance.suite.spec.dtypes import CODES, DTYPES

MOST = 1 << 26, 1 << 31
"""The greatest numbers of bytes of the two parts of an answer: many small objects, or one large one."""

BUFFER = 1 << 16
"""The bytes that a process reads at once: most messages."""

HEAD = struct.Struct("<QQ")

CARRIERS = {
    **{fmt.long_name: fmt.carrier for fmt in (*DTYPES.values(), *CODES.values())}, "bfloat16": "uint16",
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8")},
}  # fmt: skip
"""The NumPy dtypes of arrays on the wire, by the dtype of the array. bfloat16 travels as its bits, and
floating-point codes as float32."""

Name = Annotated[str, Meta(pattern=r"\A[\w.<>\[\], -]{0,200}\Z")]
"""The name of a type, a dtype, a device or a parameter, in harmless letters."""

Size = Annotated[int, Meta(ge=0, lt=1 << 40)]
Shape = Annotated[tuple[Size, ...], Meta(max_length=64)]


class Reference(Struct, tag=True):
    """An object that stays in the child: its number, and module and name of its type.

    For an array also dtype, device and shape; `is_array` is True if the type is exactly the framework's.
    """

    number: int
    kind: tuple[Name, Name]
    is_array: bool = False
    dtype: Name = ""
    device: Name = ""
    shape: Shape | None = None


class Error(Struct, tag=True):
    """An error: module and name of its types, the nearest first, its text, `ForwardOnly.declared`, and
    the error that a compiler wrapped."""

    kinds: Annotated[tuple[tuple[Name, Name], ...], Meta(min_length=1)]
    text: str
    declared: bool = False
    inside: Error | None = None


class Items(Struct, tag=True):
    """A tuple, a list, a dictionary, or a prepared call. The entries of a dictionary, and the fields of a
    call that differ from their defaults, are tuples of two."""

    values: tuple[Value, ...]
    kind: Literal["tuple", "list", "dict", "PreparedCall"]


Kind = Literal[
    "POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL", "KEYWORD_ONLY", "VAR_KEYWORD"
]
Default = bool | int | float | str | None
Parameters = (
    tuple[tuple[Name, Kind, Annotated[tuple[Default, ...], Meta(max_length=1)]], ...] | None
)
"""Name, kind and default of each parameter of a callable, `()` for no default; None if Python cannot read
the signature."""


class Layer(Struct):
    """The fields of a user's `ObservedLayer`."""

    call: Parameters
    switches: bool
    takes_parameters: bool
    unread: dict[frozenset[Name], str]
    facts: Facts


class Loaded(Struct, tag=True):
    """The facts of the user's function after its import.

    - `methods`: the parameters of its methods by name
    - `registered`: True for an operator that is registered with the framework
    - `layer`: if the function makes a layer, the layer's facts
    - `claims`: the claims that its file states
    """

    name: str
    parameters: Parameters
    methods: dict[Name, Parameters]
    registered: bool
    layer: Layer | None
    claims: dict[str, Any]


Value = bool | int | float | str | Reference | Error | Items | Loaded | None


class Answer(Struct, forbid_unknown_fields=True):
    """The answer to a request: a value, or the error that the request raised."""

    value: Value = None
    raised: Error | None = None


class Hello(Struct):
    """The first message of a child, which has not imported the user's file.

    - `unavailable`: the reason why its backend cannot be used, or ""
    - `unenforced`: the limits that this system does not enforce, as sentences
    - other fields: what a backend knows only from its framework, as in `Backend`; errors by module and
      name
    """

    unavailable: str = ""
    unenforced: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    rounding: DeclaredRounding = AS_CLASS
    validation_errors: tuple[tuple[Name, Name], ...] = ()


class Garbled(Exception):
    """The child sent an answer that its program never sends."""


def as_file(end: socket.socket) -> BinaryIO:
    """Returns a file that reads and writes a socket; the socket object is closed."""
    with end:
        return cast(BinaryIO, end.makefile("rwb", BUFFER))


def send(channel: BinaryIO, first: bytes, second: bytes | memoryview = b"") -> None:
    """Send a message of two parts. The second one may be large, and is not copied."""
    channel.write(HEAD.pack(len(first), len(second)) + first)
    channel.write(second)
    channel.flush()


def receive(channel: BinaryIO, limits: Sequence[int] = MOST) -> tuple[bytes, bytes]:
    """Receive a message, and return its two parts. `limits`: the largest numbers of bytes of both parts.
    Raises EOFError if the other process is gone, and Garbled beyond the limits."""
    lengths = HEAD.unpack(_read_exactly(channel, HEAD.size))
    if any(length > limit for length, limit in zip(lengths, limits, strict=True)):
        raise Garbled(f"an answer of {lengths[0]} and {lengths[1]} bytes")
    first, second = (_read_exactly(channel, length) for length in lengths)
    return first, second


def _read_exactly(channel: BinaryIO, count: int) -> bytes:
    got = channel.read(count)
    if len(got) < count:
        raise EOFError
    return got


def resolve_object(kind: str, name: Any) -> Any:
    """The stand-in in a pickle for an object of the child. Never called: the child's unpickler replaces
    it by `Request.resolve_object`."""
    raise NotImplementedError


def to_bytes(values: np.ndarray, dtype: str) -> memoryview:
    """Returns the values of an array of `dtype` (long name) as bytes in C order, if possible without a
    copy. Raises TypeError for a dtype that is not in `CARRIERS`."""
    if dtype not in CARRIERS:
        raise TypeError(f"arrays of {dtype} are not read from another process")
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16
        carried = bits.astype(np.uint16)
    else:
        carried = np.ascontiguousarray(values, CARRIERS[dtype])
    return carried.reshape(-1).view(np.uint8).data


def from_bytes(raw: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns the array whose bytes are `raw`: the inverse of `to_bytes`. Floating-point numbers become
    float64. Raises TypeError for a dtype that is not in `CARRIERS`, and ValueError for a wrong number of
    bytes."""
    if dtype not in CARRIERS:
        raise TypeError(f"arrays of {dtype} are not read from another process")
    carrier = np.dtype(CARRIERS[dtype])
    if len(raw) != carrier.itemsize * math.prod(shape):
        raise ValueError(f"{len(raw)} bytes are no array of {dtype} with shape {shape}")
    if carrier.kind == "b" and raw.strip(b"\0\1"):
        raise ValueError("bytes besides 0 and 1 are no array of bool")
    values = np.frombuffer(raw, carrier).reshape(shape)
    if dtype == "bfloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float64) if dtype.startswith(("float", "bfloat")) else values.copy()
