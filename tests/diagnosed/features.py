"""Rows whose softcap, ALiBi, sinks or log-sum-exp is wrong."""

from __future__ import annotations

import math

from tests.diagnosed.rows import row
from tests.diagnosed.scores import powers_of

ROWS = (
    # ports of Gemma 2
    row("capped_behind_mask", "cap-after-bias", takes="softcap", capped=lambda right, c, s: s,
        hidden=lambda right, c, s: right.capped(c, right.hidden(c, s))),
    # vllm-project/vllm-metal#665
    row("cap_is_ignored", "cap-ignored", r"softcap \S+ is ignored", takes="softcap",
        capped=lambda right, c, s: s),
    row("cap_without_its_factor", "cap-not-multiplied", takes="softcap",
        capped=lambda right, c, s: s if c.softcap is None else c.xp.tanh(s / c.softcap)),
    # meta-pytorch/attention-gym#86
    row("slopes_of_other_sign", "alibi-draws-far-keys-near", r"ALiBi bias has the other sign",
        takes="alibi_slopes",
        slopes=lambda right, c: c.alibi_slopes),
    # Dao-AILab/flash-attention#907
    row("slopes_from_the_first_query", "alibi-from-the-first-key", takes="alibi_slopes",
        distance=lambda right, c: abs(c.rows - c.keys)),
    # sgl-project/sglang#24706
    row("sinks_are_ignored", "sink-ignored", takes="sinks", sinks=lambda right, c: None),
    # ROCm/rocm-libraries#12229
    row("sinks_are_scaled", "sink-scaled", takes="sinks",
        sinks=lambda right, c: None if c.sinks is None else c.sinks * c.factor),
    # flashinfer-ai/flashinfer#4051
    row("lse_in_base_2", "lse-in-base-two", takes="lse",
        lse=lambda right, c, s: right.lse(c, s) / math.log(2)),
    # Dao-AILab/flash-attention#404
    row("lse_without_maximum", "lse-forgets-the-maximum", takes="lse",
        lse=lambda right, c, s: powers_of(c, s)[0].sum(-1).log()),
)  # fmt: skip
