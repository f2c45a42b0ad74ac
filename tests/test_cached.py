"""Scripts of caches: what cases ask, samples that are chosen, and what ids cannot mean. Honest caches
(`tests/honest`), which play scripts, are second opinions of the reference."""

from __future__ import annotations

import pytest

from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.inputs import draw
from attention_conformance.suite.spec.operators.cached import CACHED, completed
from attention_conformance.suite.spec.operators.scripts import capacity, most_tokens
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.test_caching import tokens

GROWN = "cached/none/mha/f64/b3h2q8k20d8"


def test_cases_ask_rings_and_tokens_that_nobody_attends() -> None:
    asked = of_operator(CACHED, every_case, "standard")
    spare = {capacity(case) - most_tokens(case) for case in asked}
    assert spare >= {0, 2}
    assert min(spare) < 0
    groups = dict(tokens(draw(Case.parse("cached/none/gqa2/f32/b2h4q9k9d8/c5.back2.1.3"))))
    assert not groups["tokens that no row attends"].any()  # rows before the crop attend all
    groups = dict(tokens(draw(Case.parse(f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12"))))
    assert groups["tokens that no row attends"].sum() == 3 * 9 + 3  # and padding


def test_samples_are_chosen_with_their_histories() -> None:
    inputs = draw(Case.parse(f"{GROWN}/c1.5.pick110.1.1/pad5.0.12"))
    chosen = inputs.select("b", [1, 0])
    assert chosen.case.id == "cached/none/mha/f64/b2h2q8k20d8/c1.5.pick00.1.1/pad0.5"
    assert inputs.select("b", [1]).case.id == "cached/none/mha/f64/b1h2q8k20d8/c1.5.pick0.1.1"
    with pytest.raises(ValueError, match="1 is not in list"):
        inputs.select("b", [0])
    for keep in ("keep2", "keep2x"):
        drafted = draw(Case.parse(f"{GROWN}/c1.tree112of02.{keep}.3of1.4"))
        alone = drafted.select("b", [1])
        assert alone.case.id == "cached/none/mha/f64/b1h2q8k20d8/c1.3of0.4"


def test_random_scripts_are_valid() -> None:
    sizes = Sizes(2, 2, 2, 3, 3, 4, 4)
    for numbers, script in (
        ((3, 0, 2), "creset.2"),
        ((9, 1), "c9.pick10.1"),
        ((1, 3), "c1.1+2"),
        ((7, 1), "c7.back2.1"),
        ((0, 0), "c1"),
        ((4, 0, 1), "creset.1"),
        ((8, 0, 9, 1), "c8.back2.reset.9.pick10.1/pad1.2"),
        ((8, 3), "c8.back2.1+2"),
    ):
        own, options = completed(sizes, numbers)
        assert Case.of(CACHED, own, every_case("smoke")[0].dtype, **options).id.endswith(script)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("b2h4q9k9d8", "needs a script"),
        ("b2h4q9k9d8/c9.reset", "ends with a chunk"),
        ("b2h4q9k9d8/c5.1", "add up to the number of queries"),
        ("b2h4q9k8d8/c9", "keys are as many or more"),
        ("b2h4q9k9d8/c5.back6.4", "not 6 tokens to take back"),
        ("b2h4q9k9d8/c5.pick02.4", "samples are numbers below 2"),
        ("b2h4q9k9d8/c5.pick0.4", "pick has a number for each of 2 samples"),
        ("b2h4q9k9d8/c9/win4/room4", "a ring has 5 slots"),
        ("b2h4q9k9d8/c5of00.5of1.4", "a sample steps once at a time"),
        ("b2h4q9k9d8/c5.tree1121.keep4.0", "keep has a node of the tree"),
        ("b2h4q9k9d8/c5.tree11.2", "after a tree stands keep, reset, or"),
        ("b2h4q9k9d8/c3.tree1121.back3.2", "after a tree stands keep, reset, or"),
        ("b2h4q9k9d8/c5.1.3/base100.0", "a base is that of a rotation"),
        ("b2h4q9k9d8/c5.tree1121/win3/room6", "a ring has 7 slots"),
        ("b2h4q9k9d8/c5.2of0.tree11of1.keep10.2", "keep has a node of the tree"),
        ("b2h4q9k9d8/c5.tree11.resetof1.2", "after a tree stands keep, reset, or"),
        ("b2h4q9k9d8/c2.6of1.pick11.7of0.1of1/bias.1hqk", "a column for every position"),
        ("b2h4q9k12d8/c9/pad12.0", "every prompt has a token behind it"),
        ("b2h4q9k12d8/c9/pad3", "left padding is a number for each sample"),
        ("b2h4q9k12d8/c5.reset.4/pad3.0.0.0", "not all 0 in the last"),
        ("b2h4q9k9d8/c5.reset.4/pad5.0.0.1", "every prompt has a token behind it"),
        ("b2h4q9k9d8/c5.4/pad3.0.0.1", "for each sample of every prompt"),
        ("b2h4q9k9d8/c2.tree1121.keep3.3/pad3.0", "every prompt has a token behind it"),
        ("b2h4q9k12d8/c5+4/pad3.0", "no other document"),
        ("b2h4q9k9d7/c5.4/rot.halves", "a rotation is of pairs of components"),
        ("b2h4q9k9d8/c5+0.4", "one token or more in each document"),
        ("b2h4q9k9d8/c9/cap0.0", "softcap must be positive"),
    ],
)
def test_what_ids_cannot_mean_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Case.parse(f"cached/none/mha/f32/{text}")
