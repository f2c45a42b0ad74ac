"""Tables of machine-made mutants: the share that the suite sees, what kills them, what survives."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tests.mutation.records import SEEN, VERDICTS, FaultRun, Survivor, verdict_of

COUNTED = (*SEEN, "survived")
"""What says something of the suite. A framework that cannot be imported any more is seen by everybody."""


def tables(runs: Sequence[FaultRun], read: Sequence[Survivor]) -> dict[str, pd.DataFrame]:
    """The tables of the page: power, killers, survivors.

    `power` has a row for each framework, level and seed. Its share is that of the mutants that were seen
    among those that can be: survivors which change no answer, or nothing of attention, do not count.
    """
    records = pd.DataFrame(
        [
            {
                "framework": record.framework,
                "version": record.version,
                "level": record.level,
                "seed": run.header.options.get("seed", ""),
                "status": record.status,
                "check": record.check,
                "place": f"{record.module}:{record.line}",
                "change": record.described,
                **dict(zip(("verdict", "why"), verdict_of(record, read), strict=True)),
            }
            for run in runs
            for record in run.records
        ]
    )
    killed = records[records["status"].isin(SEEN)]
    left = records[records["status"] == "survived"]
    return {
        "power": _power(records),
        "killers": (
            killed.groupby(["check", "framework"]).size().unstack(fill_value=0).sort_values(
                by=list(dict.fromkeys(killed["framework"])), ascending=False
            )
        ),
        "survivors": left[["framework", "place", "change", "verdict", "why"]]
        .drop_duplicates()
        .set_index("framework"),
    }  # fmt: skip


def _power(records: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for names, group in records.groupby(["framework", "version", "level", "seed"], sort=False):
        counted = group[group["status"].isin(COUNTED)]
        seen = int(counted["status"].isin(SEEN).sum())
        verdicts = counted["verdict"].value_counts()
        excused = int(verdicts.get("equivalent", 0) + verdicts.get("not attention", 0))
        able = len(counted) - excused
        rows.append(
            dict(zip(("framework", "version", "level", "seed"), names, strict=True))
            | {
                "mutants": len(group),
                "not imported": int((group["status"] == "not-imported").sum()),
            }
            | {"seen": seen, "survived": len(counted) - seen}
            | {name: int(verdicts.get(name, 0)) for name in (*VERDICTS, "unread")}
            | {"share": seen / able if able else float("nan")}
        )
    return pd.DataFrame(rows).set_index(["framework", "version", "level", "seed"])
