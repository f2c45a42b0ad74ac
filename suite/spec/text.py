"""Text from anywhere, made fit for a terminal, a file or a page."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import Any, TextIO

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tab and line feed, what changes the direction of text, and what UTF-8 has no
bytes for."""


def printable(text: str) -> str:
    """The text with escapes for what no terminal, file or page should be given: "\\x1b[31m"."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class PrintableStream:
    """A stream of text that writes everything `printable`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write to the stream; returns the number of characters of what was given."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def printed() -> contextlib.AbstractContextManager[object]:
    """A context in which standard output and standard error are `PrintableStream`s."""
    stack = contextlib.ExitStack()
    stack.enter_context(contextlib.redirect_stdout(PrintableStream(sys.stdout)))
    stack.enter_context(contextlib.redirect_stderr(PrintableStream(sys.stderr)))
    return stack
