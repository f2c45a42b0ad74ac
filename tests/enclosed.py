"""A function in PyTorch that tries what an isolated child may not do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from attention_conformance import claims

PARENT, NOBODY = os.getppid(), 10**7
"""In a namespace of processes 1 is no process outside."""

TRIED = "isolated-child-tried-this"


@claims(deterministic=True)
def tries(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):  # type: ignore[no-untyped-def]
    """Right if the process may neither write beside its folder, nor signal its parent, nor connect, nor
    choose its processors."""
    done = []
    for act in (
        lambda: Path(__file__).with_name(TRIED).write_text("x"),
        lambda: os.kill(PARENT if PARENT != 1 else NOBODY, 0),
        lambda: socket.create_connection(("127.0.0.1", int(os.environ["OPEN_PORT"])), 1),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).connect(os.environ["OPEN_SOCKET"]),
        lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        lambda: next(Path("references").glob("*.py")).read_text(),
    ):
        try:
            done.append(act())
        except (OSError, StopIteration):
            continue
    from torch.nn.functional import scaled_dot_product_attention

    out = scaled_dot_product_attention(
        query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return out + len(done)


@lru_cache(maxsize=1)
def left_open() -> str:
    """What an isolated child may do on this machine beyond what the documentation says; "" on Linux with
    user namespaces and Landlock."""
    done = enclosed("print(*left, sep='; ')")
    done.check_returncode()
    return done.stdout.strip()


def enclosed(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process with few rights; `left` is what the system does not limit."""
    before = (
        "import os, subprocess, sys; "
        "from attention_conformance.suite.run.isolation.sandbox import Limits, enclose; "
        "left = enclose(Limits.from_words(sys.argv[1:])); "
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", before + program, folder, "0", folder]
        return subprocess.run(command, capture_output=True, text=True)
