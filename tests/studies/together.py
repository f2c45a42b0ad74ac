"""The page docs/data/together.md, made from records.

    python -m tests.studies.together RECORDS... > docs/data/together.md

The page has the cells by status of every operator and implementation of the records, and for every
operator which features are right, wrong or refused beside one another.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from attention_conformance.suite.report.conformance import OF_OPERATORS
from attention_conformance.suite.report.frames import provenance
from attention_conformance.suite.report.kinds import conformance_frames, load_runs
from attention_conformance.suite.report.render import as_markdown
from attention_conformance.suite.report.semantics import TOGETHER
from attention_conformance.suite.spec.operators import OPERATORS

TEXT = """\
After reading this page you know which implementation may be used for a combination of features.
[The findings](../findings/index.md) say what causes the known failures, and [measured.md](measured.md)
which processor seconds the operators take.

    pytest suite --backend=torch -k "{operators}" --results=torch.jsonl
    python -m tests.studies.together torch.jsonl > docs/data/together.md

Made with {versions}.

In the tables of features an entry is *right* if all judged cells of the check `values` are right, *wrong*
with the number of wrong cells, *refused* if the implementation takes none of them, and empty if no case
needs the feature. Implementations with equal entries share a column. Two features have a row only if
their entry does not follow from theirs: a pair without a row is refused if one of its features is
refused, and right apart from these.
"""


def follows(pair: str, singles: Sequence[str]) -> bool:
    """True if the entry of two features is what their own entries let expect."""
    return pair == ("refused" if "refused" in singles else "right") or not pair


def of_operator(cells: pd.DataFrame) -> pd.DataFrame:
    """The table `together` of one operator: without pairs whose entries follow, and with one column for
    implementations with equal entries."""
    table = TOGETHER.make(cells).droplevel("operator").sort_index()

    def surprises(name: str) -> bool:
        parts = name.split(" + ")
        rows = table.loc[parts]
        return len(parts) == 1 or any(
            not follows(entry, rows[label].tolist()) for label, entry in table.loc[name].items()
        )

    kept = table[table.index.map(surprises)]
    alike: dict[tuple[str, ...], list[str]] = {}
    for label in kept:
        alike.setdefault((*kept[label],), []).append(str(label))
    return pd.DataFrame(
        {", ".join(labels): entries for entries, labels in alike.items()}, index=kept.index
    )


def page(paths: list[Path]) -> str:
    """The page in Markdown. Raises RecordError if a file is invalid."""
    frames = conformance_frames(load_runs(paths, partial=True))
    cells = frames["cells"].sort_values(
        "operator", key=lambda names: names.map([*OPERATORS].index), kind="stable"
    )
    tables = {
        "cells by status": OF_OPERATORS.make(cells).drop(columns=["score", "coverage", "seconds"])
    }
    for operator, rows in cells.groupby("operator", sort=False):
        tables[str(operator)] = of_operator(rows)
    text = TEXT.format(
        operators=" or ".join(f"{name}/" for name in dict.fromkeys(cells["operator"])),
        versions=provenance(frames["headers"].values()),
    )
    made = as_markdown(tables, "What works together")
    title, _, rest = made.partition("\n\n")
    return f"{title}\n\n{text}\n{rest}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.studies.together")
    parser.add_argument("records", nargs="+", type=Path, metavar="RECORDS")
    print(page(parser.parse_args(words).records), end="")


if __name__ == "__main__":
    main()
