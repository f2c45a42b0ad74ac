import jax
from half_attention import attention, narrow

from attention_conformance import check_attention, parametrize_attention


def test_in_float16():
    report = check_attention(attention, backend="jax", checks=["values", "precision"])
    passed = report.table[report.table["status"] == "pass"]
    assert set(passed["dtype"]) == {"f16"}


@parametrize_attention(attention, backend="jax", checks=["values"])
def test_every_cell(cell):
    cell()


def test_compiled():
    check_attention(jax.jit(attention), backend="jax", checks=["values"], dtypes=("f16",))


def test_wrong():
    check_attention(narrow, backend="jax", checks=["values"])
