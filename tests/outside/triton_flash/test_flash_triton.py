import os

import pytest
from faults import FAULTS, faulty
from flash_triton import flash

from attention_conformance import check_attention

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def test_kernel():
    report = check_attention(flash, backend="triton", device=DEVICE)
    assert report.elections.loc["causal-alignment", "triton:flash"] == "top-left"


@pytest.mark.parametrize("name", FAULTS)
def test_deviations_are_red(name, tmp_path):
    wrong = faulty(name, tmp_path)
    report = check_attention(
        wrong, backend="triton", device=DEVICE, checks=["values"], raises=False
    )
    assert not report.passed
