"""The study of processor seconds makes its table."""

from __future__ import annotations

import pytest

from tests.processes import python
from tests.studies.costs import PARTS


def test_the_table_has_every_operator_that_is_asked() -> None:
    command = ["--backend=numpy", "--level=smoke", "--operator", "merge", "paged-write"]
    done = python("-m", "tests.studies.costs", *command, check=True)
    heads, _, *rows = [
        [word.strip() for word in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("|")
    ]
    assert heads == ["operator", "cells", *PARTS, "suite / calls"]
    assert [row[0] for row in rows] == ["merge", "paged-write"]
    for row in rows:
        _, cells, calls, *others, share = row
        assert int(cells) > 10
        assert min(map(float, (calls, *others))) > 0
        assert sum(map(float, others)) / float(calls) == pytest.approx(float(share), rel=1e-2)
