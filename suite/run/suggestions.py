"""Suggested claims: the limits that a user function's errors name, if its answers agree with them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import cache

from attention_conformance.backends.claims import Claims, read_claims
from attention_conformance.backends.declared import Declared
from attention_conformance.suite.records.cells import CellRecord
from attention_conformance.suite.records.diagnoses import DiagnosisRecord
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.dtypes import DTYPES
from attention_conformance.suite.spec.vocabulary import REFUSED

LENGTHS = re.compile(r"length|seq|quer|key|rows|block|tokens", re.IGNORECASE)
HEADS = re.compile(r"head|channel|embed", re.IGNORECASE)
MULTIPLE = re.compile(r"(?:multiples? of|divisible by)\D{0,30}?([1-9]\d*)", re.IGNORECASE)
MAXIMUM = re.compile(r"(?:at most|up to|maximum|exceeds|<=)\D{0,30}?([1-9]\d*)", re.IGNORECASE)
EQUAL = re.compile(r"as many|equal|same|match", re.IGNORECASE)
END_OF_LIMIT = re.compile(r"; only NotImplementedError|\b(?:got|found|but|not)\b")
"""The words of a message after which no limit is named: the value that was got, or words of the suite."""

CLAIM = re.compile(r"\bclaim (\w+(?:=[\w,]*\w)?)(?=[?.]|$)", re.MULTILINE)
"""A claim that a sentence suggests."""

NEEDS_TRITON = re.compile(r"\btriton\b|active drivers")
"""The words of errors by which Triton is missing or finds no GPU."""

BEFORE_ERROR = re.compile(r"failed with |raised ")
"""The words of the suite that a function's own error message follows."""

FILE_PATH = re.compile(r"\S*[/\\]\S*")
"""A path, which is no word of an error."""


def triton_hint(error: object, backends: Collection[str], device: str) -> str:
    """Returns advice as the end of a sentence if an error says that Triton kernels need a GPU; "" for any
    other error, device or backend."""
    _, *own_errors = BEFORE_ERROR.split(str(error), maxsplit=1)
    needs_triton = any(NEEDS_TRITON.search(FILE_PATH.sub("", text)) for text in own_errors)
    if [*backends] != ["torch"] or device != "cpu" or not needs_triton:
        return ""
    return "; --backend=triton runs Triton kernels on a CPU (docs/triton.md)"


def possible_claims(message: str, case: Case) -> Iterator[str]:
    """Yields the claims that an error's message about a case may mean: "lengths_multiple_of=16"."""
    text = END_OF_LIMIT.split(message)[0]
    heads, lengths = HEADS.search(text), LENGTHS.search(text)
    multiple, most = MULTIPLE.search(text), MAXIMUM.search(text)
    numbers = {int(number) for number in re.findall(r"\b\d+\b", text)} - {case.sizes.D, 0}
    if multiple and not heads:
        yield from (f"lengths_multiple_of={steps}" for steps in multiples_of(multiple[1]))
    elif most and lengths and not heads:
        yield f"max_length={most[1]}"
    elif heads and numbers and not (multiple or most):
        yield "head_sizes=" + ",".join(map(str, sorted(numbers)))
    if EQUAL.search(text):
        yield from ["equal_heads"] if heads else ["equal_lengths"] if lengths else []
    dtypes = [d.name for d in DTYPES.values() if re.search(rf"\b{d.long_name}\b", text)]
    if named_dtypes := [name for name in dtypes if name != case.dtype.name]:
        yield f"dtypes={','.join(named_dtypes)}"


def multiples_of(number: str) -> tuple[str, str, str]:
    """Returns three values of the claim `lengths_multiple_of`: for all lengths, for keys only, for
    queries only."""
    return number, f"1,{number}", f"{number},1"


@cache
def declaration_of(claim: str) -> Declared:
    """Returns the declaration of a function with this claim alone."""
    return Claims.of(None, read_claims([claim])).declared()


def is_beyond(claim: str, case: Case) -> bool:
    """True if a function with this claim alone does not support the case."""
    declaration = declaration_of(claim)
    is_refused = declaration.limits_for(case.dtype).refusal(case.sizes) is not None
    return is_refused or case.dtype.name not in declaration.dtypes


def suggestion(message: str, case: Case) -> str:
    """Returns the claim that an error's message about a case suggests, as the end of a sentence; "" for
    none."""
    claims = (claim for claim in possible_claims(message, case) if is_beyond(claim, case))
    return next((f"; claim {claim}?" for claim in claims), "")


def joint_suggestions(
    cells: Iterable[CellRecord], diagnoses: Iterable[DiagnosisRecord], functions: Collection[str]
) -> list[str]:
    """Returns a line for each user function with the options of all claims that failures and diagnoses
    suggest, ready to paste. Several suggested sets of dtypes become their intersection."""
    texts = [(c.backend, c.implementation, c.message) for c in cells if c.status == "fail"]
    for one in diagnoses:
        texts += [(one.backend, one.implementation, text) for text in (one.sentence, one.hint)]
    suggested: dict[str, dict[str, list[str]]] = {}
    for backend, implementation, text in texts:
        for claim in CLAIM.findall(text) if implementation in functions else ():
            name, is_given, value = claim.partition("=")
            values_by_claim = suggested.setdefault(f"{backend}:{implementation}", {})
            values = values_by_claim.setdefault(name, [])
            values += [value] if is_given and value not in values else []
    lines = []
    for function, claims in suggested.items():
        if dtypes := [values.split(",") for values in claims.get("dtypes", ())]:
            allowed_by_all = set.intersection(*map(set, dtypes))
            claims["dtypes"] = [",".join(name for name in dtypes[0] if name in allowed_by_all)]
        words = (f"--claim {'='.join([name, *values[:1]])}" for name, values in claims.items())
        lines.append(f"{function}: what the run suggests to claim: {' '.join(sorted(words))}")
    return lines


def suggestions(cells: Iterable[CellRecord], functions: Collection[str]) -> list[str]:
    """Returns a sentence for each claim that errors of user functions suggest. A claim is suggested if it
    excludes all cases with such an error, and no case that passed."""
    errors: dict[tuple[str, tuple[str, ...]], list[Case]] = {}
    answered: dict[str, set[Case]] = {}
    for cell in cells:
        if cell.implementation not in functions or not cell.operator or cell.question:
            continue
        try:
            case = Case.parse(cell.case)
        except ValueError:
            continue  # not a case: for example a malformed problem
        name = cell.name
        if cell.status == "pass":
            answered.setdefault(name, set()).add(case)
        elif cell.kind in (REFUSED, "raised") and not case.operator.is_layer:
            errors.setdefault((name, tuple(possible_claims(cell.message, case))), []).append(case)
    suggested: Counter[tuple[str, str]] = Counter()
    for (name, claims), cases in errors.items():
        for claim in claims:
            excludes_pass = any(is_beyond(claim, case) for case in answered.get(name, ()))
            if all(is_beyond(claim, case) for case in cases) and not excludes_pass:
                suggested[name, claim] += len(cases)
                break
    return [
        f"{name}: the errors of {count} cells name a limit: claim {claim}? Then the nearest cases within "
        "are tested"
        for (name, claim), count in suggested.items()
    ]
