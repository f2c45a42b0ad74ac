"""Docstrings are written as Markdown is: `name` is code, and so is a block that is indented."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turns the lines of a docstring into reStructuredText, in place."""
    text = CODE.sub(r"``\1``", "\n".join(lines).replace("|", r"\|"))
    lines[:] = re.sub(r"\n\n(?=    )", "\n\n.. code-block:: python\n\n", text).split("\n")
