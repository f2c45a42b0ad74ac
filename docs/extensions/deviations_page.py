"""What goes wrong with attention: a page of the catalogue's deviations by family, made from its rows."""

from __future__ import annotations

from repository_pages import DOCS, write
from sphinx.application import Sphinx

from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.deviation import FAMILIES

PAGE = DOCS / "project" / "deviations.md"

INTRODUCTION = """# What goes wrong with attention

After reading this page you know mistakes that people make in attention, what they wrote, and which check
sees each of them. [How much the suite sees](../power.md) says what it misses.
"""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", lambda app, config: write(PAGE, page()))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def cell(text: str) -> str:
    """A text in one line of a table."""
    return " ".join(text.split()).replace("|", r"\|")


def page() -> str:
    """The page in Markdown: a table of sentence, hint and check for each family."""
    parts = [INTRODUCTION]
    for family, what in FAMILIES.items():
        parts.append(f"\n## {family.capitalize()}: {what}\n")
        parts.append("| what is wrong | in code | check |\n|---|---|---|")
        parts += [
            f"| {' | '.join(cell(x) for x in (one.sentence, one.hint, one.killed_by))} |"
            for one in all_faults()
            if one.family == family
        ]
    return "\n".join(parts) + "\n"
