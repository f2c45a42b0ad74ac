"""Promise: an operator that is registered with its framework keeps the framework's rules.

Compilers believe what an operator says of itself: which arguments it writes to, which shapes it returns,
how it is differentiated. `torch.library.opcheck` holds torch's custom operators to that.
"""

from __future__ import annotations

from attention_conformance.backends.protocol import Declared
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import check
from attention_conformance.suite.judge.verdict import WrongAnswer
from attention_conformance.suite.spec.catalogue import Ask, cases_of
from attention_conformance.suite.spec.vocabulary import REGISTERED


def is_registered(declared: Declared) -> bool:
    """True for an implementation that is registered as an operator: only such an operator has rules."""
    return REGISTERED in declared.features


@check(
    cases_of(
        Ask("sdpa/none/mha/{dt}/b2h3q5k7d8v6", dtypes="float32"),
        Ask("sdpa/causal/mha/{dt}/b2h3q5k7d8", dtypes="float32"),
    ),
    (REGISTERED,),
    applies_to=is_registered,
)
def test_registration(cell: Cell) -> None:
    """An operator's schema, its shapes without values and its backward pass agree with what it computes,
    also if it is traced."""
    cell.run()
    broken = cell.attempt(lambda: cell.implementation.broken_rules(cell.inputs))
    if broken:
        rules = "; ".join(f"{name}: {text}" for name, text in broken.items())
        raise WrongAnswer(
            "registration", f"the operator breaks {len(broken)} of its rules: {rules}"
        )
