import os

import pytest
from flash_triton import flash
from twins import TWINS, twin

from attention_conformance import check_attention

DEVICE = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"


def test_kernel():
    report = check_attention(flash, backend="triton", device=DEVICE)
    assert report.elections.loc["causal-alignment", "triton:flash"] == "top-left"


@pytest.mark.parametrize("name", TWINS)
def test_twins_are_red(name, tmp_path):
    wrong = twin(name, tmp_path)
    report = check_attention(
        wrong, backend="triton", device=DEVICE, checks=["values"], raises=False
    )
    assert not report.passed
