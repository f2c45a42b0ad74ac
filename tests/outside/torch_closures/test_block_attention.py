import pytest
import torch
from block_attention import blocked

from attention_conformance import assert_attention_close, check_attention, parametrize_attention

DTYPES = ("f32", "bf16")


@parametrize_attention(blocked(16), checks=["values", "poison"], dtypes=DTYPES)
def test_blocks_of_16(cell):
    cell()


@pytest.mark.parametrize("size", [1, 7, 64])
def test_every_size_of_blocks(size):
    report = check_attention(blocked(size), checks=["values"], dtypes=DTYPES)
    assert report.elections.empty


def test_one_call():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 40, 16) for _ in range(3))
    assert_attention_close(blocked(16)(query, key, value), query, key, value)


@parametrize_attention(blocked(16, rescales=False), checks=["values"], dtypes=("f32",))
def test_wrong(cell):
    cell()


def test_wrong_in_one_sweep():
    check_attention(blocked(16, rescales=False), checks=["values"], dtypes=("f32",))
