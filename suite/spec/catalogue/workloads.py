"""Workloads: named cases whose speed is measured, and the sweep over lengths.

A workload is a case with id, inputs and oracle. Sizes are those of published models, some with fewer
heads or samples so that two CPU cores can compute them; `note` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from attention_conformance.suite.spec.case import Case


@dataclass(frozen=True)
class Workload:
    """A named case.

    - `pattern`: its id with {dt} for the dtype.
    - `trained`: True if the backward pass is measured, too.
    - `swept`: True if the workload belongs to the sweep over lengths.
    """

    name: str
    pattern: str
    note: str
    trained: bool = False
    swept: bool = False

    def case(self, dtype: str = "f32") -> Case:
        """Returns the case in a dtype (short name)."""
        return Case.parse(self.pattern.replace("{dt}", dtype))


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "bert-base-512", "sdpa/none/mha/{dt}/b1h12q512k512d64",
        "encoder of BERT-base (Devlin et al. 2019), one full sequence", True,
    ),
    Workload(
        "bert-base-padded", "sdpa/pad/mha/{dt}/b4h12q128k128d64",
        "BERT-base, four sentences of different lengths padded to 128", True,
    ),
    Workload(
        "gpt2-prefill", "sdpa/causal/mha/{dt}/b1h12q1024k1024d64",
        "GPT-2 small (Radford et al. 2019), its whole context of 1024", True,
    ),
    Workload(
        "gpt2-train", "sdpa/causal/mha/{dt}/b2h12q256k256d64",
        "GPT-2 small, two sequences of 256", True,
    ),
    Workload(
        "llama-prefill", "sdpa/causal/gqa4/{dt}/b1h8q2048k2048d128",
        "grouped queries of Llama 3 8B (2024), 8 of its 32 heads and 2 of its 8 key heads",
    ),
    Workload(
        "llama-decode", "sdpa/none/gqa4/{dt}/b1h32q1k4096d128",
        "one token of Llama 3 8B against 4096 cached keys",
    ),
    Workload(
        "llama-decode-batch", "sdpa/pad/gqa4/{dt}/b8h8q1k2048d128",
        "one token each of eight sequences of different lengths, 8 of 32 heads",
    ),
    Workload(
        "llama-cache", "cached/none/gqa4/{dt}/b1h32q1k4097d128/c1",
        "one token of Llama 3 8B joins a cache of 4096",
    ),
    Workload(
        "llama-cache-batch", "cached/none/gqa4/{dt}/b8h8q1k4097d128/c1",
        "one token each of eight sequences joins a cache of 4096, 8 of 32 heads",
    ),
    Workload(
        "llama-cache-server", "cached/none/mqa/{dt}/b64h4q1k4097d64/c1",
        "one token each of 64 sequences joins a cache of 4096: Llama 3.2 1B, 4 of 32 heads",
    ),
    Workload(
        "llama-paged-decode", "paged/none/gqa4/{dt}/b1h32q1k4096d128/seg1x4096/page16",
        "one token of Llama 3 8B against 4096 keys in pages of 16",
    ),
    Workload(
        "llama-paged-decode-batch",
        "paged/none/gqa4/{dt}/b8h8q8k16384d128"
        "/seg1.1.1.1.1.1.1.1x4096.3584.2560.2048.1536.1280.1024.256/page16",
        "one token each of eight sequences of different lengths, 8 of 32 heads, pages of 16",
    ),
    Workload(
        "llama-int8-decode", "quantized/none/gqa4/{dt}/b1h32q1k4096d128/pertoken",
        "one token of Llama 3 8B against 4096 keys in 8 bits, with a scale of each token and head",
    ),
    Workload(
        "deepseek-decode", "latent/none/mha/{dt}/b1h16q1k4096d128/r512e64",
        "one token of DeepSeek-V2-Lite (2024) against 4096 cached latents",
    ),
    Workload(
        "deepseek-decode-batch", "latent/pad/mha/{dt}/b8h4q1k2048d128/r512e64",
        "one token each of eight sequences of different lengths: DeepSeek-V2-Lite, 4 of 16 heads",
    ),
    Workload(
        "falcon-decode", "sdpa/none/mqa/{dt}/b1h71q1k2048d64",
        "Falcon 7B (2023): 71 query heads share one key head",
    ),
    Workload(
        "vit-base-197", "sdpa/none/mha/{dt}/b4h12q197k197d64",
        "ViT-B/16 at 224 pixels (Dosovitskiy et al. 2021): 196 patches and a class token", True,
    ),
    Workload(
        "vit-large-577", "sdpa/none/mha/{dt}/b1h16q577k577d64",
        "ViT-L/16 at 384 pixels: 576 patches and a class token", True,
    ),
    Workload(
        "swin-window", "sdpa/none/mha/{dt}/b64h3q49k49d32/bias.1hqk",
        "Swin-T, first stage (Liu et al. 2021): windows of 7 x 7 with relative position biases", True,
    ),
    Workload(
        "stable-diffusion-cross", "sdpa/none/mha/{dt}/b2h8q1024k77d80",
        "image queries against 77 text tokens (Rombach et al. 2022), with guidance", True,
    ),
    Workload(
        "stable-diffusion-self", "sdpa/none/mha/{dt}/b1h8q1024k1024d80",
        "self-attention of 32 x 32 latents, one of the two samples of guidance",
    ),
    Workload(
        "whisper-encoder", "sdpa/none/mha/{dt}/b1h6q1500k1500d64",
        "Whisper tiny (Radford et al. 2023): 30 seconds of sound",
    ),
    Workload(
        "whisper-cross-decode", "sdpa/none/mha/{dt}/b5h6q1k1500d64",
        "Whisper tiny, one token of five beams against the encoder",
    ),
    Workload(
        "t5-bias", "sdpa/none/mha/{dt}/b1h8q512k512d64/bias.1hqk/scale1.0",
        "T5 small (Raffel et al. 2020): relative position biases, no scale", True,
    ),
    Workload(
        "bloom-alibi", "sdpa/causal/mha/{dt}/b1h16q512k512d64/bias.alibi",
        "BLOOM 560M (2022): ALiBi (Press et al. 2022)",
    ),
    Workload(
        "mistral-window", "sdpa/win255.0/gqa4/{dt}/b1h8q2048k2048d128",
        "sliding window of Mistral 7B (2023), 256 of 4096 keys wide, 8 of 32 heads",
    ),
    Workload(
        "gemma2-softcap", "sdpa/causal/gqa2/{dt}/b1h8q512k512d256/cap50.0",
        "Gemma 2 2B (2024): scores capped at 50",
    ),
    Workload(
        "long-padding", "sdpa/pad/mha/{dt}/b8h8q512k512d64",
        "eight sequences of very different lengths: what does padding cost?",
    ),
    Workload(
        "packed-documents", "sdpa/seg4/mha/{dt}/b1h8q1024k1024d64",
        "four documents packed into one sequence, each attending itself",
    ),
    Workload(
        "bahdanau-seq2seq", "additive/pad/mha/{dt}/b16h1q1k50d128/e128.128.128.128",
        "a decoder's step of additive attention (Bahdanau et al. 2015), 16 sentences of up to 50 words",
    ),
)  # fmt: skip
"""All workloads except the sweep."""

QUICK = ("gpt2-train", "bert-base-padded", "llama-decode")
"""A quick selection: causal, padded, and decoding."""

SWEEP = (64, 128, 192, 256, 384, 512, 768, 1024, 1536)
"""Lengths of the sweep."""

_SWEPT = Workload("sweep", "sdpa/none/mha/{dt}/b1h4q{L}k{L}d64", "cost against length", swept=True)


def sweep() -> tuple[Workload, ...]:
    """Returns the workloads that differ only in length, "sweep-64" and so on."""
    return tuple(
        replace(_SWEPT, name=f"{_SWEPT.name}-{L}", pattern=_SWEPT.pattern.replace("{L}", str(L)))
        for L in SWEEP
    )


def find_workloads(text: str) -> tuple[Workload, ...]:
    """Returns the workloads for a text: a name, "all", "sweep", or the id of any case.

    Raises ValueError with the valid names.
    """
    if text == "all":
        return WORKLOADS
    if text == _SWEPT.name:
        return sweep()
    for workload in (*WORKLOADS, *sweep()):
        if workload.name == text:
            return (workload,)
    if "/" in text:
        case = Case.parse(text)
        return (Workload(case.id, case.id, "a case by its id", True),)
    names = ", ".join(w.name for w in WORKLOADS)
    raise ValueError(f"unknown workload {text!r}; valid: {names}, all, sweep, or the id of a case")
