"""Acceptance tests of other projects, and how many functions of the corpus each of them rejects.

    python -m tests.acceptance            the table of docs/data/compared.md
    python -m tests.acceptance --names    the faulty functions that each test accepts, too

A rule is written after a project's own code: its inputs, dtypes, trials and tolerance. Sizes are scaled
down, so that a CPU needs milliseconds. A function is asked only what its signature takes. Arrays come as
(B, H, L, D), as transposed views if the project keeps lengths before heads. Causal masks are aligned as
torch's own attention aligns them. One rule, flash-attention's, asks gradients.
"""

from __future__ import annotations

import argparse
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.diagnosed.expected import Kernel
from tests.diagnosed.faulty import TORCH
from tests.diagnosed.kernels import HEALTHY
from tests.diagnosed.running import HERE

Attention = Callable[..., Tensor]

FAULTY = TORCH
RIGHT = tuple(kernel for kernel in HEALTHY if kernel.name.startswith("healthy.py"))


def takes(function: Attention, *names: str) -> bool:
    """True if all names are parameters of the function."""
    return {*names} <= {*inspect.signature(function).parameters}


def drawn(
    draw: Callable[..., Tensor], dtype: torch.dtype, B: int, H: int, K: int, L: int, S: int, D: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Query (B, H, L, D), key and value (B, K, S, D), each `draw(*shape)`, rounded to the dtype."""
    q, k, v = draw(B, H, L, D), draw(B, K, S, D), draw(B, K, S, D)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def lengths_first(*shape: int) -> Tensor:
    """Unit normals that lie in memory as (B, L, H, D), seen as (B, H, L, D)."""
    B, H, L, D = shape
    return torch.randn(B, L, H, D).transpose(1, 2)


def kernelbench(function: Attention) -> None:
    """ScalingIntelligence/KernelBench, `KernelBench/level1/97_ScaledDotProductAttention.py`: plain
    attention of `torch.rand`, float32. `src/kernelbench/eval.py`: equal shapes and `torch.allclose` with
    atol = rtol = 1e-4 in every trial; its scripts ask five."""
    for trial in range(5):
        torch.manual_seed(trial)
        inputs = drawn(torch.rand, torch.float32, 2, 2, 2, 256, 256, 512)
        with torch.no_grad():
            want, got = F.scaled_dot_product_attention(*inputs), function(*inputs)
        assert want.shape == got.shape
        assert torch.allclose(want, got, atol=1e-4, rtol=1e-4)


def kernels(function: Attention) -> None:
    """huggingface/kernels, `kernels/src/kernels/benchmarks/attention.py`: unit normals in float16, plain
    and causal, beside torch's math kernel in float16. `kernels/src/kernels/cli/benchmark.py`:
    `torch.allclose(out, reference, atol=1e-2)`, once, and the reference is computed after the kernel."""
    for causal in (False, True):
        if causal and not takes(function, "is_causal"):
            continue
        torch.manual_seed(42)
        inputs = drawn(lengths_first, torch.float16, 2, 8, 8, 128, 128, 64)
        got = function(*inputs, **({"is_causal": True} if causal else {}))
        with sdpa_kernel(SDPBackend.MATH):
            want = F.scaled_dot_product_attention(*inputs, is_causal=causal)
        assert torch.allclose(got, want, atol=1e-2)


def in_steps(
    query, key, value, is_causal=False, softcap=None, window=None, alibi_slopes=None, enable_gqa=False
) -> Tensor:  # fmt: skip
    """Attention step by step in the dtype of its operands; the key is scaled before the product."""
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ (key / query.shape[-1] ** 0.5).mT
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    L, S = scores.shape[-2:]
    ahead = torch.arange(S) - torch.arange(L)[:, None]
    if alibi_slopes is not None:
        scores = scores - (alibi_slopes[:, None, None] * (ahead - (S - L)).abs()).to(scores.dtype)
    left, right = (L, S) if window is None else window
    hidden = (ahead > (0 if is_causal else right)) | (-ahead > left)
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value


def flash_attention(function: Attention) -> None:
    """Dao-AILab/flash-attention, `tests/test_flash_attn.py`, `test_flash_attn_output` (as
    huggingface/kernels-community, `flash-attn2/tests`, keeps it): unit normals in float16 and bfloat16;
    lengths equal, unequal and odd; causal; one key head, a third as many, as many; a random window, a
    softcap of 50 with queries times 50, slopes up to 0.3. The largest error beside float32 is at most
    twice the error of torch in the dtype, for gradients three times. Dropout is not asked, since torch's
    signature returns no mask."""
    variants = [("plain", 6)]
    if takes(function, "enable_gqa"):
        variants += [("plain", 1), ("plain", 2)]
    variants += [
        (name, 6) for name in ("softcap", "window", "alibi_slopes") if takes(function, name)
    ]
    flags = (False, True) if takes(function, "is_causal") else (False,)
    sizes = ((29, 51, 59), (32, 32, 64), (31, 32, 64))
    for dtype, (L, S, D), is_causal, (name, heads) in product(
        (torch.float16, torch.bfloat16), sizes, flags, variants
    ):
        if L != S and getattr(function, "equal_lengths", False):
            continue
        torch.manual_seed(0)
        more = {
            "plain": {},
            "softcap": {"softcap": 50.0},
            "window": {"window": tuple(torch.randint(0, S, (2,)).tolist())},
            "alibi_slopes": {"alibi_slopes": torch.rand(6) * 0.3},
        }[name]
        more |= {"is_causal": True} if is_causal else {}
        more |= {"enable_gqa": True} if heads < 6 else {}
        q, k, v = drawn(lengths_first, dtype, 2, 6, heads, L, S, D)
        inputs = [(q * 50 if name == "softcap" else q), k, v]
        for operand in inputs:
            operand.requires_grad_()
        got = function(*inputs, **more)
        want = in_steps(*(operand.float() for operand in inputs), **more).to(dtype)
        beside = in_steps(*inputs, **more)
        g = torch.randn_like(got)
        answers = [(x, *torch.autograd.grad(x, inputs, g)) for x in (got, want, beside)]
        for times, one, exact, other in zip((2, 3, 3, 3), *answers, strict=True):
            assert (one - exact).abs().max() <= times * (other - exact).abs().max()


def flashinfer_bench(function: Attention) -> None:
    """flashinfer-ai/flashinfer-bench, `flashinfer_bench/bench/utils.py`, `config.py` and
    `evaluators/default.py`: unit normals in bfloat16, three trials, beside float32; equal shape and
    dtype, no inf, no NaN, and no element whose absolute and relative error both exceed 1e-2. The
    definitions are causal prefill (`gqa_ragged_prefill_causal_*`) and decoding of one query
    (`gqa_paged_decode_*`), with grouped heads."""
    groups = takes(function, "enable_gqa")
    prefill, decode = {"is_causal": True}, {}
    for arguments, (L, S) in ((prefill, (64, 64)), (decode, (1, 100))):
        if not takes(function, *arguments) or (
            L != S and getattr(function, "equal_lengths", False)
        ):
            continue
        for trial in range(3):
            torch.manual_seed(trial)
            more = arguments | ({"enable_gqa": True} if groups else {})
            q, k, v = drawn(torch.randn, torch.bfloat16, 2, 8, 2 if groups else 8, L, S, 64)
            with torch.no_grad():
                wide = (operand.float() for operand in (q, k, v))
                want = F.scaled_dot_product_attention(*wide, **more).to(torch.bfloat16)
                got = function(q, k, v, **more)
            assert (got.shape, got.dtype) == (want.shape, want.dtype)
            assert got.isfinite().all()
            error = (got.float() - want.float()).abs()
            assert not ((error > 1e-2) & (error / (want.float().abs() + 1e-8) > 1e-2)).any()


def backendbench(function: Attention) -> None:
    """meta-pytorch/BackendBench, `BackendBench/opinfo_suite.py`: torch's own sample inputs of
    scaled_dot_product_attention (`common_methods_invocations.py` of pytorch/pytorch) with four
    axes and without dropout: uniform in [-9, 9), bfloat16, causal and plain, a float mask.
    `BackendBench/eval.py`: `assert_close` with atol = rtol = 1e-2, NaN equal to NaN. The reference comes
    first."""
    torch.manual_seed(0)
    mask = torch.testing.make_tensor(3, 6, dtype=torch.bfloat16, device="cpu")
    for more in ({"is_causal": True}, {}, {"attn_mask": mask}):
        if not takes(function, *more) or getattr(function, "equal_lengths", False):
            continue
        q, k, v = (
            torch.testing.make_tensor(4, 4, n, 8, dtype=torch.bfloat16, device="cpu")
            for n in (3, 6, 6)
        )
        want, got = F.scaled_dot_product_attention(q, k, v, **more), function(q, k, v, **more)
        torch.testing.assert_close(want, got, equal_nan=True, atol=1e-2, rtol=1e-2)


def assert_close(function: Attention) -> None:
    """pytorch/pytorch, `torch/testing/_comparison.py`: the defaults of `torch.testing.assert_close`, in
    float32 rtol = 1.3e-6 and atol = 1e-5, in a test as people write it: unit normals, plain, causal and
    with a boolean mask, beside torch's own attention."""
    torch.manual_seed(0)
    mask = (torch.rand(32, 32) < 0.7) | torch.eye(32, dtype=torch.bool)
    for more in ({}, {"is_causal": True}, {"attn_mask": mask}):
        if not takes(function, *more):
            continue
        inputs = drawn(torch.randn, torch.float32, 2, 4, 4, 32, 32, 64)
        got = function(*inputs, **more)
        torch.testing.assert_close(got, F.scaled_dot_product_attention(*inputs, **more))


@dataclass(frozen=True)
class Rule:
    """A project's acceptance test: `check` raises an exception for a function that it rejects.
    `narrow` is True if it asks 16-bit dtypes."""

    name: str
    inputs: str
    tolerance: str
    check: Callable[[Attention], None]
    narrow: bool = True


RULES = (
    Rule("KernelBench", "uniform in [0, 1), f32; plain; 5 trials", "1e-4", kernelbench, narrow=False),
    Rule("Hugging Face kernels", "normal, f16; plain, causal", "atol 1e-2, rtol 1e-5", kernels),
    Rule(
        "flash-attention",
        "normal, f16 and bf16; causal, grouped heads, window, softcap, slopes; gradients",
        "2 times another's error, 3 times for gradients",
        flash_attention,
    ),
    Rule(
        "flashinfer-bench",
        "normal, bf16; causal prefill, decoding, grouped heads; 3 trials",
        "1e-2 absolute or relative",
        flashinfer_bench,
    ),
    Rule("BackendBench", "uniform in [-9, 9), bf16; plain, causal, float mask", "1e-2", backendbench),
    Rule(
        "`torch.testing.assert_close`",
        "normal, f32; plain, causal, boolean mask",
        "rtol 1.3e-6, atol 1e-5",
        assert_close,
        narrow=False,
    ),
)  # fmt: skip


def fresh(kernel: Kernel) -> Attention:
    """The function of a kernel of the corpus, from a module that has not been called yet."""
    file, _, function = kernel.name.partition(":")
    spec = importlib.util.spec_from_file_location(file.removesuffix(".py"), HERE / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, function)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch with one thread, since the order of sums depends on their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def float32_inside(function: Attention) -> Attention:
    """The function with 16-bit operands widened to float32 and its answer rounded once, as kernels for
    GPUs compute. What it writes into operands reaches the caller's."""

    @wraps(function)
    def wide(*operands: Tensor, **arguments: object) -> Tensor:
        copies = [operand.float() for operand in operands]
        mask = arguments.get("attn_mask")
        if isinstance(mask, Tensor) and mask.is_floating_point():
            arguments["attn_mask"] = mask.float()
        answer = function(*copies, **arguments).to(operands[0].dtype)
        for operand, copy in zip(operands, copies, strict=True):
            if not operand.requires_grad:
                operand.copy_(copy)
        return answer

    return wide


def rejects(rule: Rule, function: Attention) -> bool:
    """True if the rule's check raises any exception for the function."""
    try:
        with one_thread():
            rule.check(function)
    except Exception:
        return True
    return False


def rejected(rule: Rule, kernels: tuple[Kernel, ...], wide: bool = False) -> list[str]:
    """The names of the kernels that the rule rejects, as they are written or `float32_inside`."""
    return [
        kernel.name
        for kernel in kernels
        if rejects(rule, float32_inside(fresh(kernel)) if wide else fresh(kernel))
    ]


@dataclass(frozen=True)
class Counts:
    """How many functions a rule rejects: faulty and right ones, as written and `float32_inside`."""

    faulty: int
    faulty_wide: int
    right: int
    right_wide: int


def counted(rule: Rule) -> Counts:
    """The counts of a rule over the corpus."""
    faulty, right = len(rejected(rule, FAULTY)), len(rejected(rule, RIGHT))
    if not rule.narrow:
        return Counts(faulty, faulty, right, right)
    return Counts(
        faulty, len(rejected(rule, FAULTY, wide=True)), right, len(rejected(rule, RIGHT, wide=True))
    )


HEAD = (
    f"| acceptance test | inputs | tolerance | of {len(FAULTY)} faulty | float32 inside | "
    f"of {len(RIGHT)} right | float32 inside |\n|---|---|---|---:|---:|---:|---:|"
)
"""The head of the table."""


def row(rule: Rule, counts: Counts) -> str:
    """A rule's row of the table."""
    c = counts
    figures = f"{c.faulty} | {c.faulty_wide} | {c.right} | {c.right_wide}"
    return f"| {rule.name} | {rule.inputs} | {rule.tolerance} | {figures} |"


def own_row() -> str:
    """The row of this suite: `tests/test_diagnosed.py` proves that all faulty functions of the corpus
    fail at level smoke, and no right one."""
    return (
        "| this suite, `--level=smoke` | [the catalogue](../verdict.md) | derived for every element | "
        f"{len(FAULTY)} | | 0 | |"
    )


def main() -> None:
    """Print the table, with --names also the faulty functions that each rule accepts."""
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance")
    parser.add_argument("--names", action="store_true", help="name what each rule accepts")
    asked = parser.parse_args()
    print(HEAD)
    for rule in RULES:
        print(row(rule, counted(rule)), flush=True)
    print(own_row())
    if asked.names:
        for rule in RULES:
            accepted = {kernel.name for kernel in FAULTY} - {*rejected(rule, FAULTY)}
            print(f"\n{rule.name} accepts {', '.join(sorted(accepted))}")
            print(f"and rejects, though right, {', '.join(rejected(rule, RIGHT)) or 'none'}")


if __name__ == "__main__":
    main()
