"""The cases of attention over codes."""

from __future__ import annotations

from attention_conformance.suite.spec.levels import Ask
from attention_conformance.suite.spec.operator import Asks

PLAIN = "quantized/none/gqa2/{dt}/b2h4q3k17d8/perhead/causal"
"""A chunk behind a cache, whose heads have scales of their own."""


WIDE = "quantized/none/gqa2/{dt}/b1h4q3k9d160v130"
SMALL = "quantized/none/gqa2/{dt}/b2h4q3k17d8"
UNEQUAL = "quantized/none/mqa/{dt}/b3h2q1k23d8v6"
DECODING = "quantized/none/gqa4/{dt}/b2h8q1k130d64"

IN_PAGES = (
    f"{SMALL}/e4m3/pertoken/causal/page3",
    f"{SMALL}/pertoken/causal/writes/page4",
    f"{SMALL}/pertoken/causal/page4/shared/hnd",
)
"""Codes and scales in pages, read and written, and in pages that samples share."""

ASKS = Asks(
    plain=PLAIN,
    pages=IN_PAGES,
    cases=(
        Ask(
            PLAIN,
            f"{SMALL}/e4m3/pertoken/causal",
            f"{UNEQUAL}/perchannel/zero",
            f"{SMALL}",
            f"{UNEQUAL}/e4m3/perchannel",
            f"{SMALL}/e5m2/perhead/causal/scale0.3",
            f"{SMALL}/pertoken/zero/causal",
            f"{UNEQUAL}/e4m3",
            f"{SMALL}/perhead/causal/writes",
            f"{SMALL}/pertoken/zero/causal/writes",
            f"{UNEQUAL}/e4m3/perchannel/writes",
            f"{WIDE}/e4m3/pertile/causal",
            f"{WIDE}/pertile/causal/writes",
            f"{SMALL}/perhead/causal/page4",
            *IN_PAGES,
        ),
        Ask(
            f"{SMALL}/zero/causal",
            f"{SMALL}/int4/perchannel/causal",
            f"{UNEQUAL}/int4/pertoken/zero",
            f"{SMALL}/perhead/zero/scale-0.2",
            f"{SMALL}/perchannel/causal",
            f"{SMALL}/e4m3/perhead",
            f"{SMALL}/e5m2",
            f"{SMALL}/e5m2/pertoken",
            f"{SMALL}/e5m2/perchannel/causal",
            f"{SMALL}/pertoken/causal/large",
            f"{SMALL}/e4m3/perchannel/causal/large",
            f"{SMALL}/perhead/ties",
            f"{UNEQUAL}/pertoken",
            f"{UNEQUAL}/scale0.3",
            f"{SMALL}/perhead/causal/page4/scale0.3",
            f"{UNEQUAL}/perhead/zero",
            f"{DECODING}/perhead",
            f"{DECODING}/e4m3/perchannel",
            f"{DECODING}/perhead/offset",
            "quantized/none/gqa2/{dt}/b1h4q67k131d32/e4m3/pertoken/causal",
            "quantized/none/mha/{dt}/b2h3q33k33d16/perchannel/zero/causal",
            f"{SMALL}/zero/causal/writes",
            f"{SMALL}/e4m3/pertoken/causal/writes",
            f"{SMALL}/e5m2/perhead/causal/writes/scale0.3",
            f"{UNEQUAL}/int4/pertoken/writes",
            f"{DECODING}/perhead/causal/writes",
            "quantized/none/gqa2/{dt}/b1h4q17k17d8/e4m3/perhead/causal/writes",
            f"{WIDE}/pertile/zero",
            f"{SMALL}/pertoken/zero/page1",
            f"{WIDE}/e4m3/pertile/causal/page4",
            f"{UNEQUAL}/perchannel/page16",
            f"{UNEQUAL}/e5m2/writes/page4",
            f"{DECODING}/e4m3/perhead/causal/writes/page16",
            f"{SMALL}/e4m3/pertoken/causal/writes/page3/hnd",
            f"{SMALL}/perhead/zero/causal/writes/page2/shared",
            "quantized/none/mqa/{dt}/b2h3q1k17d257v64/e4m3/pertile/writes",
            "quantized/none/gqa2/{dt}/b1h4q3k9d128/pertile/causal",
            "quantized/none/gqa2/{dt}/b1h4q3k9d128v256/e5m2/pertile",
            since="standard",
        ),
        Ask(f"{PLAIN}/offset", dtypes="float32 first"),
        Ask("quantized/none/gqa2/{dt}/b2h4q3k17d16/perhead/causal/level", dtypes="sixteen"),
        Ask(
            "quantized/none/gqa2/{dt}/b2h4q3k17d16/e4m3/pertoken/level",
            f"{DECODING}/level",
            dtypes="sixteen",
            since="standard",
        ),
    ),
    gradients=(
        Ask(PLAIN, dtypes="float32"),
        Ask(f"{SMALL}/e4m3/pertoken/causal", dtypes="two", since="standard"),
    ),
)
