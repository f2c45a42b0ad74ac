"""The cases of attention with a cache, by level."""

from __future__ import annotations

PLAIN = "cached/none/gqa2/{dt}/b2h4q9k9d8/c5.1.3"
"""A prompt, a step of decoding, and a chunk after it."""

SMALL = "cached/none/gqa2/{dt}/b2h4q9k9d8"
GROWN = "cached/none/mha/{dt}/b3h2q8k20d8"
"""Sizes that many scripts share, because JAX compiles for every new shape."""

SMOKE = (
    PLAIN,
    f"{GROWN}/c1.1.1.1.4",
    f"{GROWN.format(dt='f32')}/c1.1.1.1.4/offset",
    f"{SMALL}/c9",
    f"{SMALL}/c3.6/win2/room4",
    f"{GROWN}/c1.5.1.1/win3/room8",
    f"{GROWN}/c1.3.1.3/pad5.0.12",
    f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12",
    # padded prompts: in one chunk of a window, and in two chunks; one of them after a reset
    f"{SMALL}/c5.1.3/win3/room4/pad3.1",
    f"{SMALL}/c3.3.1.2/pad4.1",
    f"{SMALL}/c3.1.reset.3.2/pad0.2.2.1",
    f"{SMALL}/c5.back2.1.3",
    f"{SMALL}/c4.1.3.reset.1",
    f"{GROWN}/c3.pick200.1.4",
    f"{GROWN}/c3.pick200.1.4/pad5.0.12",
    f"{SMALL}/c5.1.3/win3/cap2.0/sinks/slopes/scale0.3",
    f"{SMALL}/c5.1.3/bias.1hqk",
    f"{GROWN}/c3of0.3of12.back2.5",
    f"{GROWN}/c2.back2of0.3of1.resetof2.3of20.3",
    f"{GROWN}/c2.pick200.2of1.3of02.4of1.3of02",
    f"{SMALL}/c3.tree1121.keep3.2",
    f"{SMALL}/c1.tree11213.keep4.3/slopes",
    f"{GROWN}/c1.tree112.keep2x0.4",
    f"{GROWN}/c1.tree112of02.keep2x.3of1.4",
    f"{SMALL}/c4.tree112.keep2.2/win2/room5",
    f"{GROWN}/c1+2.1.0+4",
    f"{GROWN}/c1+2.1.2+1.back2.1/win3/slopes",
    f"{SMALL}/c5.1.3/rot.halves",
    f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12/rot.interleaved",
    f"{GROWN}/c2.back2of0.3of1.resetof2.3of20.3/rot.halves",
    # a rollback of nothing, into a full page that branches share, and of a whole tree; a second reset; a
    # base; and positions past 256, of which bfloat16 holds every second one
    f"{SMALL.format(dt='f32')}/c5.back0.1.3",
    f"{GROWN.format(dt='f32')}/c4.pick200.back2of1.4of1.4of02",
    f"{SMALL.format(dt='f32')}/c4of0.resetof0.resetof0.2of0.9of1.3of0",
    f"{SMALL.format(dt='f32')}/c3.tree1121.back4.2",
    f"{SMALL.format(dt='f32')}/c5.1.3/rot.halves/base500000.0",
    # as many slots as tokens; and a cache that has served a sequence with other options
    f"{SMALL.format(dt='f32')}/c5.1.3/room9",
    f"{SMALL.format(dt='f32')}/c5.1.3/used/cap2.0/sinks/slopes/scale0.3",
    f"{SMALL.format(dt='f32')}/c5.1.3/used/rot.halves/base500000.0",
    # branches that keep other paths of one tree
    f"{GROWN.format(dt='f32')}/c1.tree112.pick200.keep121.4",
    # a fork that is reset: the cache is filled until slots of both branches are taken again
    "cached/none/mha/f32/b3h2q17k32d8/c1.pick001.reset.8.8/room16",
    "cached/none/mha/f32/b1h2q8k260d8/c4.back2.1.1.1.1",
    "cached/none/mha/f32/b1h2q5k300d8/c1.1.3/win20/rot.halves",
    "cached/none/mha/f32/b1h2q5k300d8/c1.1.3/slopes",
)
STANDARD = (
    f"{GROWN}/c1.1.1.1.4/offset",
    # chunks of as many tokens as the window has keys, of one more, of the capacity, of more than it
    f"{SMALL}/c1.4.4/win3/room4",
    f"{SMALL}/c5.1.3/win3/room4",
    f"{SMALL}/c1.1.5.1.1/win3/room4",
    f"{SMALL}/c2.7/win0/room1",
    f"{GROWN}/c1.1.1.1.1.1.1.1/win0/room2",
    f"{SMALL}/c1.1.7/win1/room2",
    f"{SMALL}/c5.1.3/win8/room9",
    f"{SMALL}/c5.1.3/win20",
    f"{GROWN}/c1.1.1.1.1.1.1.1/win3/room5",
    f"{GROWN}/c8/win3/room5",
    f"{GROWN}/c8",
    # operations
    f"{SMALL}/c5.back5.1.3",
    f"{SMALL}/c4.back2.1.3.reset.1",
    f"{SMALL}/c5.1.back3.3/win2",
    f"{GROWN}/c1.5.back2.1.1/win3/room8",
    f"{GROWN}/c1.1.back2.5.1/win3/room6",
    f"{SMALL}/c5.reset.1.3",
    f"{GROWN}/c1.5.reset.1.1/win3/room8",
    f"{GROWN}/c3.pick201.1.pick000.4",
    f"{GROWN}/c1.5.pick200.1.1/win3/room8",
    f"{GROWN}/c1.5.pick110.1.1/pad5.0.12",
    f"{GROWN}/c1.back2.1.pick120.6",
    # features together
    f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12/slopes",
    f"{GROWN}/c1.5.1.1/pad5.0.12/cap2.0/sinks",
    f"{GROWN}/c1.5.1.1/win3/room8/cap2.0/sinks/slopes/scale0.3",
    f"{GROWN}/c1.5.1.1/win12/pad5.0.11",
    f"{SMALL}/c5.1.3/pad3.1/slopes",
    f"{SMALL}/c3.3.pick10.1.2/win3/room5/pad4.1/sinks",
    f"{SMALL}/c3.resetof1.3.3of0.3of1/pad0.2.0.1/rot.halves",
    f"{GROWN}/c1.5.1.1/win3/room8/pad5.0.12/bias.bhqk",
    f"{SMALL}/c3.tree1121.keep3.2/bias.bhqk/cap2.0",
    f"{GROWN}/c2.back2of0.3of1.resetof2.3of20.3/bias.bhqk",
    f"{SMALL}/c5.back2.1.3/bias.1hqk",
    "cached/none/mqa/{dt}/b2h4q9k9d8v6/c5.1.3",
    "cached/none/mqa/{dt}/b2h4q9k9d8v6/c5.1.3/win3/room4/slopes",
    f"{SMALL}/c5.1.3/scale0.0",
    f"{SMALL}/c5.1.3/large",
    f"{SMALL}/c5.1.3/tiny",
    # samples alone
    f"{GROWN}/c1.5of20.5of1.2/win3/room8",
    f"{GROWN}/c1of2.7of2.8of01/pad5.0.12",
    f"{GROWN}/c2.back1of1.6of1.pick102.6of02/slopes",
    f"{GROWN}/c4.resetof1.4",
    f"{SMALL}/c4of0.resetof0.5of0.9of1/cap2.0/sinks",
    # branches of one history that step alone, go back into it, or leave it
    f"{GROWN}/c2.pick200.2of1.3of02.4of1.3of02/win3/room8",
    f"{GROWN}/c3.pick200.back2of1.2of1.5of02.3of1",
    f"{GROWN}/c3.pick200.back2of1.2of1.5of02.3of1/win3/room8/pad5.0.12",
    f"{GROWN}/c3.pick200.resetof1.5of1.5of02",
    # documents
    f"{SMALL}/c2+3.1.3",
    f"{GROWN}/c0+1.1.1.1+4/win2/room4",
    f"{GROWN}/c2+2.back3.2.0+1.pick201.1/bias.1hqk",
    f"{GROWN}/c1+2of02.1of1.2+5of1.5of02/cap2.0/sinks",
    f"{GROWN}/c1+1.resetof1.1.1+3.0+1/slopes",
    # rotations
    f"{SMALL}/c9/rot.interleaved",
    f"{SMALL}/c5.back2.1.3/rot.interleaved",
    f"{SMALL}/c4.1.3.reset.1/rot.halves",
    f"{GROWN}/c1.3.1.3/pad5.0.12/rot.halves",
    f"{GROWN}/c1.1.1.1.4/win3/room5/rot.halves",
    f"{GROWN}/c3.pick200.1.4/rot.halves/sinks/slopes",
    f"{GROWN}/c1+2.1.2+1.back2.1/rot.halves",
    f"{SMALL}/c3.tree1121.keep3.2/bias.bhqk/rot.interleaved/cap2.0",
    "cached/none/gqa4/{dt}/b2h8q3k130d64/c1.2/rot.halves",
    # trees
    f"{SMALL}/c5.tree1121",
    f"{SMALL}/c2.tree11.keep1.tree112.keep2.2",
    f"{SMALL}/c3.tree1121.keepx.2",
    f"{SMALL}/c3.tree1121.keepx2.2/cap2.0/sinks/slopes",
    f"{GROWN}/c1.tree11213.keep4.2/win3",
    f"{GROWN}/c1.tree1121.keep3.3/pad5.0.12/slopes",
    f"{GROWN}/c1.tree112of21.keep0x.3of0.4/win2/room6/pad5.0.12/rot.halves",
    f"{SMALL}/c2.tree112of1.resetof1.3of0.4/bias.bhqk",
    # past borders of tiles
    "cached/none/gqa4/{dt}/b2h8q3k130d64/c1.2",
    "cached/none/gqa4/{dt}/b2h8q67k131d64/c1.64.2/win32/room96",
    # back from a common history of 16 or 17 tokens: a branch writes into what was a full page
    f"{GROWN.format(dt='f32')}/c5.pick200.back2of1.3of1.3of02",
    f"{GROWN.format(dt='f32')}/c5.pick200.back5of1.3of1.3of02",
    # a reset of a sample that is empty already
    f"{SMALL.format(dt='f32')}/c4of0.back4of0.resetof0.2of0.9of1.3of0",
    # trees of branches
    f"{GROWN.format(dt='f32')}/c3.pick200.tree112.keep2.2",
    f"{GROWN.format(dt='f32')}/c1.tree112.pick200.keep02x.4/win3",
    f"{GROWN.format(dt='f32')}/c4.pick200.back2of1.tree112of1.keep2.1of1.4of02",
    # as in smoke, one option at a time
    *(f"{SMALL.format(dt='f32')}/c5.1.3/used/{option}" for option in ("cap2.0", "sinks", "slopes")),
    f"{SMALL.format(dt='f32')}/c5.1.3/used/bias.bhqk/scale0.3",
    # as in smoke, in a pool that is larger than the cache needs
    "cached/none/mha/f32/b2h1q902k1202d4/c1.pick00.reset.300.reset.300.reset.300.1",
    # past 128 tokens, which a rollback leaves once more, and positions past 256
    "cached/none/mha/f32/b1h2q8k132d8/c4.back2.1.1.1.1",
    "cached/none/mha/bf16/b1h2q5k300d8/c1.1.3/win20/rot.halves",
    "cached/none/mha/bf16/b1h2q5k300d8/c1.1.3/slopes",
    f"{SMALL.format(dt='f32')}/c5.1.3/rot.interleaved/base100.0",
    # enough rows over enough tokens that sums in 16 bits are seen
    "cached/none/mha/bf16/b2h8q5k600d4/c1.1.3",
    # two trees beside each other, of which samples keep other ones
    f"{GROWN.format(dt='f32')}/c2.tree122.keep010.3",
    # a tree that is rejected whole
    f"{GROWN.format(dt='f32')}/c1.tree112of1.back4of1.4of1.7of02",
)
