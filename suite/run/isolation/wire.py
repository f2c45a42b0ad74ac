"""Messages between the parent, which judges, and the child, which runs a user's function.

The child trusts the parent: a request is a pickle. The parent trusts nothing: an answer is JSON and raw
bytes. What stays in the child is answered as a *handle*, a number with claims about the object. The
parent reads an array by its handle as bytes, whose number the claimed dtype and shape fix.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
from typing import Any, BinaryIO, cast

import numpy as np

from attention_conformance.suite.spec.dtypes import CODES, DTYPES

MOST_JSON, MOST_BYTES = 1 << 26, 1 << 31
"""The greatest sizes of the two parts of an answer."""

MOST_AXES = 64

BUFFER = 1 << 16
"""The bytes that a process reads at once: most messages."""

HEAD = struct.Struct("<QQ")

CARRIERS = {
    **{fmt.long_name: fmt.carrier for fmt in (*DTYPES.values(), *CODES.values())}, "bfloat16": "uint16",
    **{name: name for name in ("bool", "int8", "int16", "int32", "int64", "uint8")},
}  # fmt: skip
"""The NumPy dtypes of arrays on the wire, by the dtype of the array. bfloat16 travels as its bits, and
floating-point codes as float32."""

NAME = re.compile(r"[\w.<>\[\], ]{0,200}")
"""The names of types, dtypes and devices that are taken from a child."""


class Garbled(Exception):
    """An answer of the child is none that the child's own program gives."""


def as_file(end: socket.socket) -> BinaryIO:
    """A socket as a file, which takes the socket over."""
    with end:
        return cast(BinaryIO, end.makefile("rwb", BUFFER))


def send(channel: BinaryIO, text: bytes, raw: bytes = b"") -> None:
    """Send a message of two parts."""
    channel.write(HEAD.pack(len(text), len(raw)) + text + raw)
    channel.flush()


def receive(
    channel: BinaryIO, most: tuple[int, int] = (MOST_BYTES, MOST_BYTES)
) -> tuple[bytes, bytes]:
    """A message of two parts, each at most so long. Raises EOFError if the other process is gone, and
    Garbled."""
    text, raw = HEAD.unpack(_exactly(channel, HEAD.size))
    if text > most[0] or raw > most[1]:
        raise Garbled(f"an answer of {text} and {raw} bytes")
    return _exactly(channel, text), _exactly(channel, raw)


def _exactly(channel: BinaryIO, count: int) -> bytes:
    got = channel.read(count)
    if len(got) < count:
        raise EOFError
    return got


def found(kind: str, name: Any) -> Any:
    """Stands in a request for an object of the child, which the child finds by kind and name."""
    raise NotImplementedError


def to_bytes(values: np.ndarray, dtype: str) -> bytes:
    """The values of an array of `dtype` (long name), C-contiguous."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16).tobytes()
    return np.ascontiguousarray(values, CARRIERS[dtype]).tobytes()


def from_bytes(raw: bytes, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array of `to_bytes`, floating-point numbers as float64. Raises TypeError for a dtype that does
    not travel, and ValueError if the number of bytes is another one."""
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


def checked(value: Any, kind: type, what: str) -> Any:
    """A value of an answer. Raises Garbled unless its type is exactly `kind`."""
    if type(value) is not kind:
        raise Garbled(f"{what} is {type(value).__name__}, expected {kind.__name__}")
    return value


def checked_name(value: Any, what: str) -> str:
    """A name of an answer, in harmless letters. Raises Garbled."""
    text = checked(value, str, what)
    if not NAME.fullmatch(text):
        raise Garbled(f"{what} has unexpected letters")
    return text


def checked_shape(value: Any) -> tuple[int, ...]:
    """A shape of an answer. Raises Garbled."""
    sizes = checked(value, list, "a shape")
    if len(sizes) > MOST_AXES or not all(type(n) is int and 0 <= n < 1 << 40 for n in sizes):
        raise Garbled("a shape is no list of sizes")
    return tuple(sizes)


def parsed(text: bytes) -> dict[str, Any]:
    """The first part of an answer. Raises Garbled."""
    try:
        return checked(json.loads(text), dict, "an answer")
    except (ValueError, RecursionError) as error:
        raise Garbled(f"an answer is no JSON: {error}") from error
