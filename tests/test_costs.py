"""Processor seconds are counted once, for the part that spends them."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from tests.shown import ROOT
from tests.studies.costs import PARTS, Clock


def test_a_part_within_a_part_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def spend(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "process_time", lambda: now)
    clock = Clock()

    def failing() -> None:
        spend(4)
        raise ValueError

    owner = SimpleNamespace(call=failing)
    clock.watch(owner, "call", "calls")

    def reference() -> None:
        spend(1)
        with pytest.raises(ValueError, match=r"^$"):
            owner.call()
        spend(2)

    owner.reference = reference
    clock.watch(owner, "reference", "reference")
    clock.switch("paged", "judge")
    spend(8)
    owner.reference()
    spend(16)
    clock.switch("", "judge")
    spend(32)
    assert clock.seconds["paged"] == {"judge": 24, "reference": 3, "calls": 4}


def test_the_table_has_every_operator_that_is_asked() -> None:
    command = ["--backend=numpy", "--level=smoke", "--operator", "merge", "paged-write"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.studies.costs", *command],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
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
