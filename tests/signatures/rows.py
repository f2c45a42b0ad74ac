"""People's signatures: what each function is, how it is bound, and a wrong twin of each."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """A function of one of the files here.

    - `file`: `of_torch`, ...; `name`: the function's name; `claims`: what the command claims
    - `binding`: words of the line in which the run says how the function is called
    - `advice`: words of the first sentence without the claims, "" if the function needs none
    - `twins`: texts of the function, each with what makes a wrong twin of it
    - `code`: the name in the file behind which this text stands, by default the function's
    """

    file: str
    name: str
    binding: str
    twins: tuple[tuple[str, str], ...]
    claims: tuple[str, ...] = ()
    advice: str = ""
    code: str = ""

    @property
    def backend(self) -> str:
        return self.file.removeprefix("of_")

    def __str__(self) -> str:
        return f"{self.backend}-{self.name}"

    def written(self, folder: Path, twin: tuple[str, str] = ("", "")) -> Path:
        """The file with this function, or with one of its wrong twins, in a folder."""
        text = (FOLDER / f"{self.file}.py").read_text()
        name = self.code or self.name
        place = next(re.finditer(rf"^(?:def|class) {name}\b", text, re.MULTILINE)).start()
        head, body = text[:place], text[place:]
        right, wrong = twin
        assert right in body, f"{self}: {right!r} is no text of the function"
        path = folder / f"{self.file}.py"
        path.write_text(head + body.replace(right, wrong, 1))
        return path


BOOLEAN = ("masks=boolean",)
TAKES_BOOLEANS = "takes boolean masks right"


def row(
    name: str, binding: str, *twins: tuple[str, str], file: str = "of_torch", **more: Any
) -> Row:
    """A function of a file, by default of PyTorch's."""
    return Row(file, name, binding, twins, **more)


ROWS = (
    row("with_dropout", "returns (output, weights)", ("math.sqrt(query.size(-1))", "query.size(-1)")),
    row("annotated", "mask=attn_mask, masks boolean", ("mask == 0", "mask != 0"),
        ("return weights @ value, weights", "return weights @ value, scores"),
        claims=BOOLEAN, advice=TAKES_BOOLEANS),
    row("for_booleans", "masks boolean", ("attn_mask == 0", "attn_mask != 0"),
        claims=BOOLEAN, advice=TAKES_BOOLEANS),
    row("flash", "axes (B, L, H, D), windows count from the last key",
        ("distance > right", "distance >= right"),
        ("x.repeat_interleave(group, dim=2)", "x.repeat(1, 1, group, 1)"),
        ('"bhqk,bkhd->bqhd"', '"bhqk,bkhd->bhqd"'), ("distance < -left", "distance <= -left")),
    row("memory_efficient", "attn_bias=bias, p=dropout, axes (B, L, H, D)",
        ("scores + attn_bias", "scores + 2 * attn_bias")),
    row("eager_attention_forward",
        "output axes (B, L, H, D), masks additive, returns (output, weights)",
        ("weights + attention_mask", "weights - attention_mask"),
        ("output.transpose(1, 2).contiguous()", "output"),
        claims=("masks=additive",), advice="are added to the scores"),
    row("triton_tutorial", "causal=is_causal, sm_scale=scale",
        ("p * (dp - (do * o)", "p * (dp + (do * o)"), code="_Attention"),
    row("sage", "sm_scale=scale, return_lse=lse", ("logsumexp(-1)", "logsumexp(-1) + 1"),
        ('tensor_layout == "NHD"', 'tensor_layout == "HND"')),
    row("single_prefill",
        "axes (L, H, D), log-sum-exp to the base 2, windows count from the last key",
        ("k.mT) * scale", "k.mT) * scale * 1.01"), ("* math.log2(math.e)", "* 2"),
        ("window_left - 1)", "window_left)")),
    row("mlx_like", "mask=attn_mask, grouped heads by their shapes",
        ("scores.masked_fill(~mask", "scores.masked_fill(mask"),
        ("repeat_interleave(group, dim=1)", "repeat(1, group, 1, 1)")),
    row("instance", "", ("math.sqrt(Q.shape[-1])", "Q.shape[-1]"), code="Model"),
    row("TwoMasks", "no grouped heads", ("padding_mask == 0", "padding_mask != 0")),
    row("ScaledDotProductAttention",
        "Q=query, K=key, V=value, mask=attn_mask, masks boolean, returns (output, weights)",
        ("self.d_k**0.5", "self.d_v**0.5"),
        claims=("masks=boolean", "dtypes=f32,bf16,f64"), advice=TAKES_BOOLEANS),
    row("DotProductAttention", "valid_lens=lengths, axes (B, L, D)",
        ("places < valid_lens", "places <= valid_lens")),
    row("Model", "", ("math.sqrt(Q.shape[-1])", "math.sqrt(Q.shape[1])")),
    row("jitted", "axes (B, H, L, D), no grouped heads", ("jnp.where(mask", "jnp.where(~mask"),
        file="of_jax"),
    row("flax_like", "no grouped heads", ("scores + bias", "scores - bias"), file="of_jax"),
    row("one_sample", "axes (L, D)", ("jnp.tri(", "jnp.tri(k=1, *"), file="of_jax"),
    row("scaled_dot_product_attention", "masks binary_hides, returns (output, weights)",
        ("-1e9", "-1e1"), file="of_tf", claims=("masks=binary_hides", "dtypes=f32,bf16"),
        advice="which hides a key"),
    row("lengths_first", "attention_mask=attn_mask, use_causal_mask=is_causal",
        ("[:, None] >= tf", "[:, None] > tf"), file="of_tf"),
)  # fmt: skip
