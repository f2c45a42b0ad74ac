"""What wrong implementations are told: the first sentence of the diagnosis.

A line is "KERNEL: CHECK: SENTENCE". Kernels are asked at smoke: `values` first, then the checks of
gradients, then the others, until CHECK fails. The diagnosis has no time limit, so that sentences do not
depend on the speed of the machine. Kernels of JAX are left out: JAX compiles every call, which takes
minutes and gigabytes.

- "right": no check fails
- "nothing": a check fails, and there is no diagnosis
- "refused": the trial call refuses the kernel

Of an exploit a line says what shows it: "EXPLOIT: CHECK: STATUS KIND". Exploits of the clock depend on
times, and are left out. A fault is diagnosed as if the catalogue lacked it, by the cells of `values`, of
gradients and of its own check, which takes half an hour for all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from attention_conformance.backends.protocol import UsageError
from attention_conformance.suite.checks import all_checks
from attention_conformance.suite.deviations import all_faults
from attention_conformance.suite.deviations.backend import KernelBackend
from attention_conformance.suite.deviations.deviation import Deviation
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.check import Check
from attention_conformance.suite.judge.diagnosis.diagnose import diagnose
from attention_conformance.suite.judge.diagnosis.finding import Diagnosis
from attention_conformance.suite.judge.judge import judge
from attention_conformance.suite.judge.verdict import first_line
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.run import diagnosing
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.run.plan import Plan
from attention_conformance.suite.run.recorded import record
from attention_conformance.suite.spec.vocabulary import BROKEN, GRADIENTS, VALUES
from tests.diagnosed.expected import HERE, Kernel
from tests.diagnosed.kernels import KERNELS
from tests.frozen.part import FOLDER, Part, Texts, Wanted

FUNCTIONS = FOLDER.parent / "functions"

UNLIMITED = 1e6
"""Processor seconds of a diagnosis."""

FIRST = (VALUES, *GRADIENTS)
"""The checks that are asked first."""

LIKE = {
    "caching.py": "cached", "coding.py": "quantized", "keras_layers.py": "multi-head",
    "latents.py": "latent", "merging.py": "merge", "paging.py": "paged", "rotations.py": "rotary",
    "own_classes.py": "multi-head", "own_classes.py:AdditiveAttention": "additive",
    "own_classes.py:AdditiveWithoutTanh": "additive", "own_keras_classes.py": "self-attention",
    "varlen.py": "packed",
    "coding.py:written": "quantized-write",
    "paging.py:written": "paged-write", "paging.py:written_in_place": "paged-write",
}  # fmt: skip
"""The operators of functions, by file and by name."""

BACKENDS = {
    "of_jax.py": "jax", "of_tensorflow.py": "tf", "keras_layers.py": "tf",
    "own_flax_classes.py": "jax", "own_keras_classes.py": "tf",
    "own_attention.py:jax_own": "jax", "own_attention.py:keras_own": "tf",
}  # fmt: skip
"""The backends of functions that are not PyTorch's."""

MADE = {
    "of_other_kinds.py": (
        "meta", "sparse", "compressed", "nested", "jagged", "quantized", "mkldnn", "subclass", "negated",
    ),
    "operators.py": ("packet", "overload"),
    "caching.py": ("slots",),
}  # fmt: skip
"""Functions that files make without `def`."""

LEFT_OUT = {
    r"faulty\.py:(ends_the_process|is_killed)": "ends the process",
    r"faulty\.py:(sleeps|holds_the_lock)": "does not return",
    r"of_other_kinds\.py:(Subclass|in_8_bits)|backward\.py:(Constant|weights_of)|"
    r"(caching|limited|operators)\.py:[Aa]ttend$|latents\.py:attended|caching\.py:rotate|"
    r"coding\.py:spread|limited\.py:(check_sizes|Breaks)|of_torch\.py:(scores_of|hidden|repeated)$|"
    r"operators\.py:(shaped|kept|gradients|two_gradients)|partly\.py:finite|"
    r"ambient\.py:(autocast|buffered|Float32Inside)|partly\.py:blocks|"
    r"of_torch\.py:(changed|refusing|rows)|faulty\.py:(hides_all|flipped_alone)": "is a part of a kernel",
    r"of_tensorflow\.py:(by_softmax|in_float32)|own_attention\.py:keras_own|of_keras\.py:right":
        "fails by TensorFlow's softmax of one key, which depends on the CPU",
}  # fmt: skip
"""Functions that are asked nothing, as regular expressions, and why."""


def first_sentence(options: Options) -> str:
    """What a user function is told."""
    try:
        plan = Plan.make(options)
    except UsageError as error:
        return f"refused: {plainly(str(error))}"
    (function, *_) = plan.functions
    records: list[CellRecord] = []
    for check in in_order():
        records += [record(cell, judge(cell, plan.policy(cell))) for cell in plan.cells(check)]
        if any(one.status in BROKEN for one in records):
            few = diagnosing._failing_and_passing(records)
            said = of(partial(diagnosing._diagnose_implementation, plan, function, few, UNLIMITED))
            return f"{check.name}: {said}"
    return "right"


def of(diagnose: Callable[[], Sequence[Any]]) -> str:
    """The first sentence of diagnoses; "no diagnosis" with the error that a run would note."""
    try:
        said = diagnose()
    except Exception as error:
        return f"no diagnosis: {plainly(first_line(error))}"
    return plainly(said[0].sentence) if said else "nothing"


def in_order() -> list[Check]:
    """All checks: those of `FIRST` come first."""
    return sorted(all_checks().values(), key=lambda one: [*FIRST, one.name].index(one.name))


def plainly(text: str) -> str:
    """The first line of a text, without folders, with three digits of long decimals. The share of weights
    that dropout drew is left out."""
    text = text.partition("\n")[0].replace(f"{FOLDER.parents[1]}/", "")
    text = re.sub(r"\d+% of the weights", "#% of the weights", text)
    return re.sub(r"\d+\.\d{3,}(e[-+]\d+)?", lambda number: f"{float(number[0]):.3g}", text)


def of_corpus(wanted: Wanted) -> Texts:
    """What the kernels of `tests/diagnosed` are told."""
    kernels = [one for one in KERNELS if wanted(one.name) and is_asked(one.name, one.backend)]
    return {one.name: of_kernel(one) for one in kernels}


def of_kernel(kernel: Kernel) -> str:
    """What a kernel of `tests/diagnosed` is told."""
    return _of_file(HERE / kernel.name, kernel.backend, kernel.like)


def of_functions(wanted: Wanted) -> Texts:
    """What the functions of `tests/functions` are told."""
    return {
        name: _of_file(FUNCTIONS / name, *functions()[name]) for name in filter(wanted, functions())
    }


@cache
def functions() -> dict[str, tuple[str, str]]:
    """Backend and operator of the functions and classes of `tests/functions` that are asked, by
    "FILE:NAME"."""
    found = {}
    for path in sorted(FUNCTIONS.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [one.name for one in tree.body if isinstance(one, ast.FunctionDef | ast.ClassDef)]
        made = (node for node in tree.body if isinstance(node, ast.Assign))
        rows = [word.arg for one in made if ast.unparse(one.targets[0]) == "ROWS"
                for word in one.value.keywords]  # fmt: skip
        for name in (*names, *rows, *MADE.get(path.name, ())):
            full = f"{path.name}:{name}"
            backend = BACKENDS.get(full, BACKENDS.get(path.name, "torch"))
            if not name.startswith("_") and is_asked(full, backend):
                found[full] = backend, LIKE.get(full, LIKE.get(path.name, ""))
    return found


def is_asked(name: str, backend: str) -> bool:
    """True unless a function is left out, or is JAX's."""
    return backend != "jax" and not any(re.match(out, name) for out in LEFT_OUT)


def _of_file(path: Path, backend: str, like: str) -> str:
    options = Options((backend,), function=(str(path),), like=like, level="smoke", cell_timeout=0.0)
    return first_sentence(options)


def of_exploits(wanted: Wanted) -> Texts:
    """How the functions of `tests/exploits` end in the runs with --untrusted of their tests."""
    from tests import test_exploits as tests

    return {name: plainly(tests.outcome(name)) for name in filter(wanted, tests.ATTACKS)}


def of_withheld(wanted: Wanted) -> Texts:
    """What faults are told by a catalogue without them. Faults of an operator stand together: they share
    answers."""
    told = {}
    for fault in sorted(all_faults(), key=lambda one: one.kernel.operator.name):
        if wanted(fault.name):
            told[fault.name] = of(partial(_withheld, fault))
    return told


def _withheld(fault: Deviation) -> list[Diagnosis]:
    """The diagnoses of a fault; none if no cell of smoke fails."""
    (kernel,) = KernelBackend("mine", (fault.kernel,)).implementations()
    judged: dict[str, list[Cell]] = {"fail": [], "pass": []}
    for check in in_order():
        if check.name in (*FIRST, fault.killed_by):
            for cell in check.cells("smoke", [kernel]):
                judged.setdefault(judge(cell).status, []).append(cell)
    failing, passing = judged["fail"], judged["pass"]
    if not failing:
        return []
    return diagnose(kernel, failing, passing, UNLIMITED, fault.name)


TOLD = [
    Part("told", "told-diagnosed", of_corpus, note="without kernels of JAX"),
    Part("told", "told-functions", of_functions, note="without those of JAX"),
    Part("told", "told-exploits", of_exploits),
    Part("told", "told-withheld", of_withheld),
]
