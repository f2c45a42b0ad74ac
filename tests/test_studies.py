"""Studies: their pages and tables are what the cases, the records and the parameters say."""

from __future__ import annotations

from pathlib import Path

import pytest

from attention_conformance.backends import registry
from tests.rows import cell, run
from tests.studies import parameters
from tests.studies.pairs import PAGE as PAIRS
from tests.studies.pairs import arrays, covered, possible
from tests.studies.pairs import page as page_of_pairs
from tests.studies.parameters import defaults, functions, reason, recorded, unpassed
from tests.studies.subjects import REASONS, SUBJECTS
from tests.studies.together import page


def test_the_page_is_written_from_the_cases() -> None:
    assert PAIRS.read_text(encoding="utf-8") == page_of_pairs(), (
        "run `python -m tests.studies.pairs`"
    )


def test_every_possible_pair_is_drawn_if_all_pairs_are() -> None:
    whole = [(name, array) for name, drawn, array in arrays() if drawn in ("values", "gradients")]
    assert {name for name, array in whole if covered(array, 2)[0] < possible(array)} == set()


RECORDED = recorded(parameters.PAGE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("backend", SUBJECTS)
def test_each_parameter_is_passed_or_has_a_reason(backend: str) -> None:
    if backend not in registry.installed():
        pytest.skip(f"needs {', '.join(registry.modules(backend))}")
    left = [
        f"{name}({parameter})"
        for subject in SUBJECTS[backend]
        for name, function in functions(subject).items()
        for parameter in unpassed(name, defaults(function), RECORDED.get(name, set()))
        if not reason(name, parameter)
    ]
    assert not left, (
        f"expected a case that passes each parameter, or a reason in tests/studies/subjects.py; got "
        f"neither for {', '.join(left)}; pass them in a row, or add reasons, and run "
        f"`python -m tests.studies.parameters {backend}`"
    )


def test_each_reason_stands_on_the_page() -> None:
    page = parameters.PAGE.read_text(encoding="utf-8")
    assert [why for why in REASONS.values() if f"| {why} |" not in page] == []


CASE = "paged/none/mha/f32/b1h1q1k{}d8"
WINDOW, SCALE = ("window",), ("scale",)


def test_a_pair_has_a_row_only_where_its_entry_does_not_follow(tmp_path: Path) -> None:
    cells = [
        cell(
            CASE.format(n), implementation, status, operator="paged", features=features, seconds=0.5
        )
        for implementation, statuses in {
            "torch:one": ("pass", "pass", "pass", "pass"),
            "torch:two": ("pass", "pass", "pass", "pass"),
            "torch:three": ("pass", "pass", "known", "unsupported"),
        }.items()
        for n, status, features in zip(
            range(1, 5),
            statuses,
            (WINDOW, SCALE, (*WINDOW, *SCALE), (*WINDOW, "softcap")),
            strict=True,
        )
    ]
    cells.append(cell(operator="packed", features=WINDOW, status="unsupported"))
    text = page([run(*cells).save(tmp_path / "records.jsonl")])
    lines = text.splitlines()
    assert '    pytest suite --backend=torch -k "packed/ or paged/" --results=torch.jsonl' in lines
    counted = lines[lines.index("## Cells by status") :]
    assert "| packed | torch:sdpa | 1 | 0 | 0 | 0 | 1 | 0 | 0 |" in counted
    assert "| paged | torch:three | 4 | 2 | 0 | 1 | 1 | 0 | 0 |" in counted
    assert lines[lines.index("## Paged") + 2 :] == [
        "| features | torch:one, torch:two | torch:three |",
        "| --- | --- | --- |",
        "| scale | right | wrong (1 of 2) |",
        "| scale + window | right | wrong (1 of 1) |",
        "| softcap | right | refused |",
        "| window | right | wrong (1 of 2) |",
    ]
