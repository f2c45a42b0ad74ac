"""Text from any source, made safe for a terminal, a file or a page."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any, TextIO

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except tab and line feed, characters that change text direction, and surrogates,
which UTF-8 cannot encode."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

MOST_NAMES = 100
"""How many valid names a message lists."""


def printable(text: str) -> str:
    """Returns the text with unsafe characters escaped, as in "\x1b[31m"."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def uncoloured(text: str) -> str:
    """Returns the text without terminal colour codes, which messages of Keras and Ray contain."""
    return _COLOURS.sub("", text)


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name `text`: the nearest of `names`, or "" if none is
    near."""
    near = get_close_matches(text, names, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def valid_names(text: str, names: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name `text`: all valid names, or of more than
    `MOST_NAMES` the nearest five."""
    valid = [*names]
    if len(valid) <= MOST_NAMES:
        return f"; valid: {', '.join(valid)}"
    near = get_close_matches(text, valid, 5, 0)
    return f"; the nearest of {len(valid)} valid names: {', '.join(near)}"


UNREAD = 128 + 13
"""The exit code of a shell's command that SIGPIPE ends."""


class PrintableStream:
    """A text stream that writes `printable` text. Raises SystemExit if the stream cannot be written: its
    reader has ended, as in `| head`, or the disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes the text, made printable. Returns the length of `text`."""
        with self._while_read():
            self._stream.write(printable(text))
        return len(text)

    def flush(self) -> None:
        """Flushes the stream."""
        with self._while_read():
            self._stream.flush()

    @contextlib.contextmanager
    def _while_read(self) -> Iterator[None]:
        """Returns a context that raises SystemExit if the stream cannot be written."""
        try:
            yield
        except OSError as error:
            # Python flushes the stream once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if isinstance(error, BrokenPipeError):
                raise SystemExit(UNREAD) from None
            print(f"{self._stream.name} cannot be written: {error.strerror}", file=sys.__stderr__)
            raise SystemExit(2) from None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Returns a context with standard output and standard error as `PrintableStream`s."""
    out, err = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield
        out.flush()
