"""Findings: a page each, with its script, and a page that lists them, made from the manifests."""

from __future__ import annotations

from pathlib import Path

from repository_pages import write
from sphinx.application import Sphinx
from sphinx.config import Config

from attention_conformance.suite.records.findings import (
    INTRODUCTION,
    SEVERITIES,
    by_severity,
    citing,
    description,
    manifests,
)

FOLDER = Path(__file__).resolve().parents[1] / "findings"
"""The pages; git ignores them."""


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("config-inited", _write_pages)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def pages() -> dict[str, str]:
    """Every page in Markdown, by its name."""
    contents = manifests()
    index = ["# Findings\n", INTRODUCTION, "", by_severity(contents)]
    for severity, text in SEVERITIES.items():
        index.append(f"\n## {severity.capitalize()}\n\nThe software {text}.\n")
        index.append("| finding | framework | upstream |\n|---|---|---|")
        index += [
            f"| [{finding.title.replace('|', ' ')}]({finding.name}.md) | {backend} | {finding.state} |"
            for backend, (findings, _) in contents.items()
            for finding in findings
            if finding.severity == severity
        ]
    texts = {}
    for backend, (findings, _) in contents.items():
        if findings:
            names = "\n".join(f"{finding.name} <{finding.name}>" for finding in findings)
            index.append(f"\n```{{toctree}}\n:hidden:\n:caption: {backend}\n\n{names}\n```\n")
        for finding in findings:
            body = description(finding, citing(finding, contents))
            texts[finding.name] = f"# {finding.title}\n\n{body}"
    return {"index": "\n".join(index), **texts}


def _write_pages(app: Sphinx, config: Config) -> None:
    made = pages()
    for name, text in made.items():
        write(FOLDER / f"{name}.md", text)
    for page in FOLDER.glob("*.md"):
        if page.stem not in made:
            page.unlink()  # of a finding that is gone
