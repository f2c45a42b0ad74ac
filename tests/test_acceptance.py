"""Acceptance tests of other projects: they accept torch's own attention, and docs/data/compared.md has
the figures that they give now."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.acceptance import (  # noqa: E402
    HEAD,
    RULES,
    Counts,
    Rule,
    counted,
    float32_inside,
    own_row,
    rejects,
    row,
)  # fmt: skip

PAGE = Path(__file__).resolve().parents[1] / "docs" / "data" / "compared.md"
ATTENTION = torch.nn.functional.scaled_dot_product_attention
FEW = 3
"""Functions of the corpus whose rejection in 16 bits depends on how a processor rounds."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    """torch's own attention, in Python, so that its signature can be read."""
    more = {"attn_mask": attn_mask, "is_causal": is_causal, "enable_gqa": enable_gqa}
    return ATTENTION(query, key, value, scale=scale, **more)


@each_rule
def test_a_rule_accepts_right_attention_and_rejects_noise(rule: Rule) -> None:
    def noise(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        return torch.rand_like(query) + 0 * (key.sum() + value.sum())

    assert not rejects(rule, attention)
    assert rejects(rule, noise)
    assert rejects(rule, float32_inside(noise))


def shown(rule: Rule) -> Counts:
    """The counts of the rule on the page."""
    head = re.escape(row(rule, Counts(0, 0, 0, 0)).partition("| 0 |")[0])
    figures = head + r"\| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$"
    found = re.search(figures, PAGE.read_text("utf-8"), re.MULTILINE)
    assert found is not None, rule.name
    return Counts(*map(int, found.groups()))


@each_rule
def test_the_page_holds_what_a_rule_rejects(rule: Rule) -> None:
    """Figures with float32 inside stay if a tolerance changes by 7 percent; 16-bit ones may move."""
    page, now = shown(rule), counted(rule)
    assert (page.faulty_wide, page.right_wide) == (now.faulty_wide, now.right_wide)
    assert abs(page.faulty - now.faulty) <= FEW
    assert abs(page.right - now.right) <= FEW


def test_the_page_holds_the_head_and_the_row_of_this_suite() -> None:
    lines: Any = PAGE.read_text("utf-8").splitlines()
    first = lines.index(HEAD.splitlines()[0])
    assert lines[first + 1] == HEAD.splitlines()[1]
    assert lines[first + 2 + len(RULES)] == own_row()


def test_what_is_written_into_operands_is_kept() -> None:
    def in_place(query, key, value):
        query *= 2
        return query

    query = torch.ones(1, 1, 2, 2, dtype=torch.float16)
    assert float32_inside(in_place)(query, query.clone(), query.clone()).dtype == torch.float16
    assert (query == 2).all()
