"""Faults of the kernel, each one a change of its text: what must turn the tests red."""

import importlib.util
from pathlib import Path

SOURCE = Path(__file__).with_name("flash_triton.py")

FAULTS = {
    "hides the diagonal": ("m >= j)", "m > j)"),
    "counts rows from the block's first": ("(m >= j)", "(m - first >= j)"),
    "causal keys end a block early": ("tl.minimum(N, first + BM)", "tl.minimum(N, first)"),
    "ignores the causal flag": ("(j < N) & (m >= j) if CAUSAL else j < N", "j < N"),
    "keys behind the end have score 0": (" if CAUSAL else j < N", " if CAUSAL else j >= 0"),
    "leaves out the last keys": ("if CAUSAL else N\n", "if CAUSAL else N // BN * BN\n"),
    "loads keys behind the end": ("(j < N) & (d < D)[:, None]", "(j < N + BN) & (d < D)[:, None]"),
    "loads values behind the end": ("(i < N) & (e < E), 0.0", "(e < E) & (i >= 0), 0.0"),
    "loads components of the next row": ("(m < M) & (d < D)[None, :]", "(m < M) & (d < BD)[None, :]"),
    "stores rows behind the end": ("(m < M) & (e < E)\n", "(m >= 0) & (e < E)\n"),
    "does not store the last rows": ("(m < M) & (e < E)\n", "(m < M // BM * BM) & (e < E)\n"),
    "scales by the padded size": ("D**-0.5", "triton.next_power_of_2(D) ** -0.5"),
    "ignores the scale": ("D**-0.5 if scale is None else scale", "D**-0.5"),
    "does not scale": ('"ieee") * scale', '"ieee")'),
    "does not rescale the sum of values": ("acc = acc * rescale[:, None]", "acc = acc"),
    "does not rescale the sum of weights": ("total = total * rescale", "total = total"),
    "forgets the earlier maximum": ("tl.maximum(high, tl.max(s, 1))", "tl.max(s, 1)"),
    "takes powers of 2": ("p = tl.exp(", "p = tl.exp2("),
    "does not divide by the sum": ("acc / tl.where(total > 0, total, 1.0)[:, None]", "acc"),
    "sums values in 16 bits": ("high = higher", "high, acc = higher, acc.to(q.dtype)"),
    "rounds scores to 16 bits": ('"ieee") * scale', '"ieee").to(q.dtype) * scale'),
    "takes rows of values for adjacent": ("i * vn", "i * E"),
    "takes adjacent components": ("d[None, :] * qd", "d[None, :]"),
    "repeats key heads in another order": ("h // GROUP", "h % (H // GROUP)"),
    "takes the first sample for all": ("V + b * vb", "V"),
}  # fmt: skip
"""Faults by name: a text of the kernel's file, and what stands there instead."""


def faulty(name, folder):
    """The function with one fault, from a file of its own: Triton reads the source of kernels."""
    old, new = FAULTS[name]
    source = SOURCE.read_text()
    assert source.count(old) == 1, f"{name}: {old!r} stands {source.count(old)} times"
    path = Path(folder, "faulty.py")
    path.write_text(source.replace(old, new))
    spec = importlib.util.spec_from_file_location("faulty", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.flash
