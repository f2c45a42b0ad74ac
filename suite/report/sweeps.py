"""Tables of sweeps: functions of what was read of them (`suite.report.swept`)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from suite.records.searches import Cause, Searched
from suite.report.conformance import UNSUPPORTED
from suite.report.precision import VALUES
from suite.report.swept import Failing, Swept
from suite.spec.vocabulary import BROKEN, STATUSES

CONFIDENCE = 0.95

QUANTILES = {"median": 0.5, "90%": 0.9, "99%": 0.99, "99.9%": 0.999, "99.99%": 0.9999, "max": 1.0}
"""The quantiles of error ratios, by what their columns are called."""

_COUNTED = ["cells", "beyond", *QUANTILES]

CONTROLS = ("numpy",)
"""Backends that are right by construction: where one fails, the suite is wrong."""

_CELL = ["release", "check", "case", "implementation"]


def tables_of_sweeps(folders: Iterable[Path], names: Iterable[str]) -> dict[str, pd.DataFrame]:
    """The tables of `suite.report.kinds.SWEEPS` called `names`. Raises RecordError."""
    swept = Swept(folders)
    return {name: _TABLES[name](swept) for name in names}


def overview(swept: Swept) -> pd.DataFrame:
    """Index (runs, release): seeds, runs that are whole, cells recorded and owed, hours of one core,
    and the versions."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for (title, release, _), run, seconds in swept.runs:
        row = rows.setdefault(
            (title, release),
            {"seeds": 0, "whole": 0, "cells": 0, "owed": 0, "core_hours": 0.0, "versions": ""},
        )
        row["seeds"] += 1
        row["whole"] += run.complete
        row["cells"] += run.recorded
        row["owed"] += run.header.cells
        row["core_hours"] += seconds / 3600
        row["versions"] = ", ".join(f"{n} {v}" for n, v in run.header.versions.items())
    columns = ["seeds", "whole", "cells", "owed", "core_hours", "versions"]
    return _indexed(rows, ["runs", "release"], columns)


def by_release(swept: Swept) -> pd.DataFrame:
    """Index (implementation, release): score, coverage, cells, and a count per status."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for ((_, release, _), label, status), n in swept.counts.items():
        counts[label, release, status] += n
    return _scored(counts, ["implementation", "release"])


def by_seed(swept: Swept) -> pd.DataFrame:
    """Index (release, seed): score, coverage, cells, and a count per status."""
    counts: Counter[tuple[str, int, str]] = Counter()
    for ((_, release, seed), _, status), n in swept.counts.items():
        counts[release, seed, status] += n
    return _scored(counts, ["release", "seed"]).sort_index(kind="stable")


def _scored(counts: Counter[Any], names: list[str]) -> pd.DataFrame:
    rows: dict[tuple[Any, Any], dict[str, Any]] = {}
    for (*key, status), n in counts.items():
        rows.setdefault((key[0], key[1]), dict.fromkeys(STATUSES, 0))[status] += n
    for row in rows.values():
        total = sum(row[status] for status in STATUSES)
        trials = total - row[UNSUPPORTED]
        score = row["pass"] / trials if trials else math.nan
        row |= {"score": score, "coverage": trials / total, "cells": total}
    return _indexed(rows, names, ["score", "coverage", "cells", *STATUSES])


def tightness(swept: Swept) -> pd.DataFrame:
    """How near answers come to their bounds: quantiles of max |error| / bound over cells and seeds of the
    check `VALUES`; index (implementation, dtype, release)."""
    groups: dict[tuple[str, str, str], list[np.ndarray]] = defaultdict(list)
    classes: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
    for (release, label, check, dtype, numerics), arrays in swept.ratios.items():
        if check == VALUES:
            groups[label, dtype, release] += arrays
            classes[label, dtype, release][numerics] = None
    names = ["implementation", "dtype", "release"]
    rows = {
        key: {"numerics": ", ".join(filter(None, classes[key])), **_quantiles(arrays)}
        for key, arrays in groups.items()
    }
    return _indexed(rows, names, ["numerics", *_COUNTED])


def tightness_of_checks(swept: Swept) -> pd.DataFrame:
    """The same quantiles of every check that measures; index (check, numerics), over all
    implementations."""
    groups: dict[tuple[str, str], list[np.ndarray]] = defaultdict(list)
    for (_, _, check, _, numerics), arrays in swept.ratios.items():
        groups[check, numerics] += arrays
    rows = {key: _quantiles(arrays) for key, arrays in sorted(groups.items())}
    return _indexed(rows, ["check", "numerics"], _COUNTED)


def _quantiles(arrays: Sequence[np.ndarray]) -> dict[str, float]:
    ratios = np.concatenate(arrays)
    # Between two numbers of which one is infinite there is none: the higher one.
    values = np.quantile(ratios, [*QUANTILES.values()], method="higher")
    beyond = int((ratios > 1).sum())
    return {
        "cells": len(ratios),
        "beyond": beyond,
        **dict(zip(QUANTILES, map(float, values), strict=True)),
    }


def rates(swept: Swept) -> pd.DataFrame:
    """How often cells that were asked fail, with exact intervals (Clopper and Pearson 1934); index
    (implementation, release). What is known counts beside it."""
    return _rates(swept, lambda label: True)


def false_alarms(swept: Swept) -> pd.DataFrame:
    """The same of `CONTROLS`, a million cells: what the suite says wrongly of what is right."""
    table = _rates(swept, lambda label: swept.backends[label] in CONTROLS)
    trials, failed = int(table["asked"].sum()), int(table["failed"].sum())
    if not trials:
        return table
    total = _indexed({("all", ""): _rate(trials, failed)}, ["implementation", "release"], [*table])
    table = pd.concat([table, total])
    millions = table[["rate", "low", "high"]] * 1e6
    return table[["asked", "failed"]].assign(
        a_million=millions["rate"], low=millions["low"], high=millions["high"]
    )


def _rates(swept: Swept, of: Callable[[str], bool]) -> pd.DataFrame:
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for ((_, release, _), label, status), n in swept.counts.items():
        if of(label):
            counts[label, release][status] += n
    seeds, rows = swept.seeds, {}
    for (label, release), tally in counts.items():
        trials = tally.total() - tally[UNSUPPORTED]
        failed = sum(tally[status] for status in BROKEN)
        if trials:
            more = {"known": tally["known"], "seeds": seeds[release, label]}
            rows[label, release] = _rate(trials, failed) | more
    columns = ["asked", "failed", "rate", "low", "high", "known", "seeds"]
    return _indexed(rows, ["implementation", "release"], columns)


def _rate(trials: int, failed: int) -> dict[str, Any]:
    interval = binomtest(failed, trials).proportion_ci(CONFIDENCE, method="exact")
    low, high = float(interval.low), float(interval.high)
    return {"asked": trials, "failed": failed, "rate": failed / trials, "low": low, "high": high}


def failing(swept: Swept) -> pd.DataFrame:
    """Failures by implementation, check and kind, the most frequent first: cells, with how many seeds,
    the largest error ratio, one of the cases, and its message. What is known is none of them."""
    groups: dict[tuple[str, str, str, str], list[tuple[str, Failing]]] = defaultdict(list)
    for (release, check, case, label), cell in swept.failing.items():
        if cell.seeds:
            groups[label, check, cell.kind, release].append((case, cell))
    rows = {}
    for key, cells in sorted(groups.items(), key=lambda entry: -len(entry[1])):
        case, worst = max(cells, key=lambda entry: entry[1].ratio)
        rows[key] = {
            "cells": len(cells),
            "seeds": len({seed for _, cell in cells for seed in cell.seeds}),
            "error_ratio": worst.ratio if worst.ratio >= 0 else math.nan,
            "case": case,
            "message": worst.message,
        }
    columns = ["cells", "seeds", "error_ratio", "case", "message"]
    return _indexed(rows, ["implementation", "check", "kind", "release"], columns)


def some_seeds(swept: Swept) -> pd.DataFrame:
    """Cells that fail, or are known to fail, with some seeds and not with others: what hangs on the
    values. The rarest first, and those that are known alone last; `known` is with how many of the others
    a failure is expected, and failed as expected."""
    seed_counts = swept.seeds
    rows = {}
    for (release, check, case, label), cell in swept.failing.items():
        seeds = seed_counts[release, label]
        if 0 < len(cell.seeds) < seeds or (not cell.seeds and cell.known < seeds):
            rows[release, check, case, label] = {
                "failed": len(cell.seeds),
                "known": cell.known,
                "of": seeds,
                "status": next((status for status, _ in cell.statuses.most_common(1)), "known"),
                "kind": cell.kind,
                "error_ratio": cell.ratio if cell.ratio >= 0 else math.nan,
                "seed": min(cell.seeds, default=None),
                "message": cell.message,
            }
    columns = ["failed", "known", "of", "status", "kind", "error_ratio", "seed", "message"]
    table = _indexed(rows, _CELL, columns)
    # Those that are known alone last.
    return table.sort_values("failed", key=lambda n: n.where(n > 0, math.inf), kind="stable")


_SEARCH = ["backends", "implementations", "dtypes", "mode", "gradients", "versions"]


def searched(swept: Swept) -> pd.DataFrame:
    """Index `_SEARCH`, all that distinguishes searches but their seeds: with how many seeds was searched,
    how many of these searches are whole, the examples that they judged, problems of the corpus that they
    were asked, hours, cells by status, and in how many parts processes ended."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    judged: dict[tuple[str, ...], Counter[int]] = defaultdict(Counter)
    owed: dict[tuple[str, ...], dict[int, int]] = defaultdict(dict)
    for one in swept.searched:
        key = _search_of(one)
        row = rows.setdefault(key, dict.fromkeys(["examples", "corpus", "core_hours", "ended"], 0))
        row["corpus" if one.corpus else "examples"] += one.examples
        row["core_hours"] += one.seconds / 3600
        row["ended"] += bool(one.ended)
        counts[key].update(one.statuses)
        if not one.corpus:
            judged[key][one.seed] += one.examples
            owed[key][one.seed] = one.of
    statuses = sorted({status for tally in counts.values() for status in tally})
    for key, row in rows.items():
        row["seeds"] = len(judged[key])
        row["whole"] = sum(n >= owed[key][seed] for seed, n in judged[key].items())
        row |= {status: counts[key][status] for status in statuses}
    columns = ["seeds", "whole", "examples", "corpus", "core_hours", "ended", *statuses]
    return _indexed(rows, _SEARCH, columns)


def _search_of(one: Searched) -> tuple[str, ...]:
    """All that distinguishes a search, as texts; "" for what is not restricted."""
    options = one.options
    versions = ", ".join(f"{name} {version}" for name, version in one.versions.items())
    words = [" ".join(options.get(name, ())) for name in ("implementation", "dtype")]
    gradients = "yes" if options.get("gradients", True) else "no"
    return " ".join(one.backends), *words, str(options.get("mode", "")), gradients, versions


def findings(swept: Swept) -> pd.DataFrame:
    """What searches found, each cause once, the most frequent first: how often and with how many seeds it
    was met, the smallest case, whether it repeats, and the name of its files."""
    times: Counter[Cause] = Counter()
    seeds: dict[Cause, set[int]] = defaultdict(set)
    for one in swept.searched:
        for hit in one.hits:
            times[hit.cause] += hit.times
            seeds[hit.cause].add(one.seed)
    rows = {}
    for cause, finding in sorted(swept.findings.items(), key=lambda entry: -times[entry[0]]):
        implementation, check, *_ = cause
        rows[implementation, check, finding.kind, finding.case] = {
            "times": times[cause],
            "seeds": len(seeds[cause]),
            "repeats": finding.repeats,
            "file": finding.id,
            "message": finding.message,
        }
    columns = ["times", "seeds", "repeats", "file", "message"]
    return _indexed(rows, ["implementation", "check", "kind", "case"], columns)


def _indexed(rows: dict[Any, dict[str, Any]], names: list[str], columns: list[str]) -> pd.DataFrame:
    """A table with a row for every entry, whose key is its index."""
    if not rows:
        return pd.DataFrame(columns=[*names, *columns])
    index = pd.MultiIndex.from_tuples(list(rows), names=names)
    return pd.DataFrame(list(rows.values()), index=index, columns=columns)


_TABLES: dict[str, Callable[[Swept], pd.DataFrame]] = {
    "swept": overview,
    "by_release": by_release,
    "by_seed": by_seed,
    "rates": rates,
    "false_alarms": false_alarms,
    "tightness": tightness,
    "tightness_of_checks": tightness_of_checks,
    "failing": failing,
    "some_seeds": some_seeds,
    "searched": searched,
    "found": findings,
}
