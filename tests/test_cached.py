"""Promise: a step with a cache is plain attention over the tokens that the script has left in it."""

from __future__ import annotations

import numpy as np
import pytest

from attention_conformance.suite.judge.oracle import Oracle, Rounding
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import cases as every_case
from attention_conformance.suite.spec.catalogue import of_operator
from attention_conformance.suite.spec.inputs import Inputs, draw
from attention_conformance.suite.spec.operators.cached import CACHED, completed
from attention_conformance.suite.spec.operators.scripts import capacity, most_tokens
from attention_conformance.suite.spec.operators.steps import Chunk, Crop, Keep, Pick, Reset
from attention_conformance.suite.spec.operators.views import attended
from attention_conformance.suite.spec.sizes import Sizes
from attention_conformance.suite.test_caching import tokens
from tests.plain import attention as plain_attention

GROWN = "cached/none/mha/f64/b3h2q8k20d8"
CASES = (
    "cached/none/gqa2/f64/b2h4q9k9d8/c5.1.3",
    "cached/none/mqa/f64/b2h4q9k9d8v6/c4.back2.1.3.reset.1/scale0.3",
    f"{GROWN}/c1.5.back2.1.1/win3/room8/cap2.0/sinks/slopes",
    f"{GROWN}/c1.5.pick110.1.1/pad5.0.12",
    f"{GROWN}/c3.pick201.1.pick000.4/slopes",
    f"{GROWN}/c2.back2of0.3of1.resetof2.3of20.3/win3/slopes",
    f"{GROWN}/c3.pick200.back2of1.2of1.5of02.3of1/win3/room8/pad5.0.12",
    f"{GROWN}/c2.back1of1.6of1.pick102.6of02/pad5.0.12",
    "cached/none/gqa2/f64/b2h4q9k9d8/c1.tree11213.keep4.3/slopes",
    f"{GROWN}/c1.tree112.keep2x0.4/win2/pad5.0.12/sinks/slopes",
    "cached/none/gqa2/f64/b2h4q9k9d8/c3.tree1121.keep3.2/bias.bhqk",
    f"{GROWN}/c1.5.pick110.1.1/win3/room8/pad5.0.12/bias.1hqk",
    "cached/none/gqa2/f64/b2h4q9k11d8/c2.tree11.keep1.tree112.reset.2",
    f"{GROWN}/c2+2.back3.2.0+1.pick201.1/win3/slopes",
    f"{GROWN}/c1+2of02.1of1.2+5of1.5of02/bias.bhqk",
    "cached/none/gqa2/f64/b2h4q9k9d8/c5.1.3/rot.halves",
    f"{GROWN}/c1.5.back2.pick110.1.1/win3/pad5.0.12/rot.interleaved/cap2.0/sinks/slopes",
    "cached/none/gqa2/f64/b2h4q9k9d8/c3.3.1.2/pad4.1/rot.halves",
    "cached/none/gqa2/f64/b2h4q9k9d8/c3.3.pick10.1.2/win3/room5/pad4.1/sinks/slopes",
    f"{GROWN}/c1.resetof1.3.reset.4/pad5.0.12.0.2.2",
    f"{GROWN}/c1.tree112of21.keep0x.3of0.4/win2/room6/pad5.0.12/rot.halves",
    "cached/none/gqa2/f64/b2h4q9k9d8/c4.tree112.keep2.2/win2/room5/slopes",
    f"{GROWN}/c1.tree112.pick200.keep02x.4/win3/slopes",
    "cached/none/gqa2/f64/b2h4q9k9d8/c3.tree1121.keep3.2/bias.bhqk/rot.halves",
)


def rotated(x: np.ndarray, positions: list[int], pairs: str) -> np.ndarray:
    """x (1, H, n, D) whose pairs are rotated, each by a matrix."""
    out, size = x.copy(), x.shape[-1]
    for n, position in enumerate(positions):
        for i in range(size // 2):
            one, two = (i, i + size // 2) if pairs == "halves" else (2 * i, 2 * i + 1)
            angle = position * 10000 ** (-2 * i / size)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            out[:, :, n, [one, two]] = x[:, :, n, [one, two]] @ turn.T
    return out


def token_by_token(inputs: Inputs) -> np.ndarray:
    """The answer (B, H, Lq, Dv): a list of tokens for every sample, and every row by itself."""
    case, s = inputs.case, inputs.sizes
    Token = tuple[int, int, int, int]  # sample, place, position, document
    histories: list[list[Token]] = [
        [(b, place, place, 0) for place in range(s.Lk - s.Lq)] for b in range(s.B)
    ]
    documents, drafting = 0, list[int]()
    prompts, left = [*(case.option("padding") or ()), *[0] * 9 * s.B], case.option("left")
    padding, resets, arrived = prompts[: s.B], [0] * s.B, [s.Lk - s.Lq] * s.B
    nodes: list[list[list[Token]]] = [[] for _ in range(s.B)]
    out = np.zeros((s.B, s.H, s.Lq, s.Dv))
    for action in case.option("script"):
        samples = [*range(s.B)] if action.samples is None else [*action.samples]
        match action:
            case Reset():
                for b in samples:
                    resets[b] += 1
                    histories[b], padding[b] = [], prompts[resets[b] * s.B + b]
            case Crop(count=count):
                for b in samples:
                    histories[b] = histories[b][:-count]
            case Pick():
                histories, nodes = [histories[n] for n in samples], [nodes[n] for n in samples]
                padding = [padding[n] for n in samples]
            case Keep(nodes=ends):
                each = ends * (len(drafting) if len(ends) == 1 else 1)
                for b, node in zip(drafting, each, strict=True):
                    histories[b] = histories[b] + (nodes[b][node] if node >= 0 else [])
        if not isinstance(action, Chunk):
            continue
        steps = action.tree.steps if action.tree else ()
        nodes, drafting = [[] for _ in range(s.B)], samples
        for b in samples:
            for n in range(action.count):
                document = (nodes[b][-1] if nodes[b] else histories[b] or [(0, 0, 0, 0)])[-1][3]
                if n in action.documents:
                    documents = document = documents + 1
                parent = n - steps[n] if steps else n - 1
                path = nodes[b][parent] if parent >= 0 else []
                position = len(histories[b]) + len(path)
                nodes[b].append([*path, (b, arrived[b], position, document)])
                history, row = histories[b] + nodes[b][n], arrived[b] - (s.Lk - s.Lq)
                seen = [
                    (sample, place, at)
                    for sample, place, at, own in history
                    if own == document
                    and at >= padding[b]
                    and (left is None or position - at <= left)
                ]
                arrived[b] += 1
                if not seen:  # left padding
                    continue
                key, value = (
                    np.array([x[sample, :, place] for sample, place, _ in seen])[None].swapaxes(
                        1, 2
                    )
                    for x in (inputs.key, inputs.value)
                )
                query = inputs.query[b : b + 1, :, row : row + 1]
                if case.option("rotary") != "none":
                    pairs, ats = case.option("rotary"), [at for _, _, at in seen]
                    query, key = rotated(query, [position], pairs), rotated(key, ats, pairs)
                behind = position - np.array([at for _, _, at in seen])
                slopes = inputs.arrays.get("alibi_slopes", np.zeros(s.H))
                own = np.zeros((s.H, len(seen)))
                if inputs.bias is not None:
                    of = inputs.bias[b if len(inputs.bias) > 1 else 0]
                    own = of[:, row, [at for _, _, at in seen]]
                answer = plain_attention(
                    query, key, value,
                    bias=own[:, None] - slopes[:, None, None] * behind, scale=inputs.effective_scale,
                    softcap=case.option("softcap"), sinks=inputs.arrays.get("sinks"),
                )  # fmt: skip
                out[b, :, row] = answer[0, :, 0]
            if not steps:
                histories[b] = histories[b] + (nodes[b][-1])
    return out


@pytest.mark.parametrize("text", CASES)
def test_the_reference_is_plain_attention_over_what_the_script_left(text: str) -> None:
    inputs = draw(Case.parse(text))
    expected = Oracle.forward(inputs, Rounding("exact")).expected["output"]
    assert expected.value.shape == inputs.output_shape("output")
    assert np.allclose(expected.value.astype(float), token_by_token(inputs), rtol=0, atol=1e-13)
    unread = np.broadcast_to(inputs.fully_masked_rows[..., None], expected.value.shape)
    assert ((expected.error > 0) | unread).all()
    assert (token_by_token(inputs)[unread] == 0).all()


def test_what_rows_attend_is_what_moves_them() -> None:
    """A token changes a row's answer where `attended` says so, and nowhere else."""
    inputs = draw(Case.parse(f"{GROWN}/c1.5.back2.pick110.1.1/win3/pad5.0.12"))
    seen, before = attended(inputs.case), token_by_token(inputs)
    assert seen.any(-1).any(-1).all()
    for sample, place in ((0, 12), (1, 13), (1, 17), (1, 18), (2, 3), (0, 19)):
        value = inputs.value.copy()
        value[sample, :, place] += 1.0
        moved = (token_by_token(inputs.replace(value=value)) != before).any((1, 3))
        assert np.array_equal(moved, seen[:, :, sample, place])


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
    assert np.allclose(token_by_token(chosen), token_by_token(inputs)[[1, 0]], rtol=0, atol=0)
    assert inputs.select("b", [1]).case.id == "cached/none/mha/f64/b1h2q8k20d8/c1.5.pick0.1.1"
    with pytest.raises(ValueError, match="1 is not in list"):
        inputs.select("b", [0])
    for keep in ("keep2", "keep2x"):
        drafted = draw(Case.parse(f"{GROWN}/c1.tree112of02.{keep}.3of1.4"))
        alone = drafted.select("b", [1])
        assert alone.case.id == "cached/none/mha/f64/b1h2q8k20d8/c1.3of0.4"
        assert np.allclose(token_by_token(alone), token_by_token(drafted)[[1]], rtol=0, atol=0)


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
        (
            "b2h4q9k9d8/c5.tree1121/win3/room6",
            "a ring has 7 slots",
        ),
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
