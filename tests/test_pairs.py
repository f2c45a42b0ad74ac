"""The page of pairs is what the cases are."""

from __future__ import annotations

from tests.studies.pairs import PAGE, arrays, covered, page, possible


def test_the_page_is_written_from_the_cases() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.studies.pairs`"


def test_every_possible_pair_is_drawn_if_all_pairs_are() -> None:
    whole = [(name, array) for name, drawn, array in arrays() if drawn in ("values", "gradients")]
    assert {name for name, array in whole if covered(array, 2)[0] < possible(array)} == set()
