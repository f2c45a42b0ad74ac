"""What the project says of itself in other formats: the citation file and the badges."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from suite import __version__

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_file_is_valid_and_says_what_the_project_says() -> None:
    """The keys that schema 1.2.0 demands, none that it does not know, and the project's own facts."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    required = {"authors", "cff-version", "message", "title"}
    optional = {"abstract", "date-released", "keywords", "license", "type", "version"}
    assert required <= cited.keys() <= required | optional
    assert cited["cff-version"] == "1.2.0"
    assert cited["type"] == "software"
    assert (cited["version"], cited["license"]) == (__version__, PROJECT["license"])
    (author,) = cited["authors"]
    assert author.keys() == {"name"}, "an entity, no person"
    assert author["name"].lower() in (ROOT / "LICENSE").read_text(encoding="utf-8").lower()
    assert len(set(cited["keywords"])) == len(cited["keywords"])
    assert all(isinstance(cited[key], str) for key in ("abstract", "message", "title", "version"))


def test_badges_are_true_and_lie_in_the_repository() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    badges = dict(re.findall(r"!\[([^]]*)\]\(([^)]*)\)", readme))
    versions = [
        text.rpartition(" ")[2]
        for text in PROJECT["classifiers"]
        if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
    ]
    texts = {f"Python {', '.join(versions)}", f"Licence {PROJECT['license']}"}
    assert badges.keys() == texts
    for text, path in badges.items():
        picture = (ROOT / path).read_text(encoding="utf-8")
        assert f"<title>{text}</title>" in picture
        shown = " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", picture))
        assert shown.replace(" |", ",").lower() == text.lower()
