"""Records of a run: its header, the record of each cell, and the record of a cell whose process died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import metadata
from typing import Any

from attention_conformance.backends.compilers import mode_of
from attention_conformance.backends.threads import present_thread_variables
from attention_conformance.suite.judge.cell import Cell
from attention_conformance.suite.judge.verdict import Verdict
from attention_conformance.suite.records import machine
from attention_conformance.suite.records.cells import CellRecord, Header
from attention_conformance.suite.run.options import Options
from attention_conformance.suite.spec.case import Case
from attention_conformance.suite.spec.catalogue import AnyCase, find
from attention_conformance.suite.spec.elections import ElectionCase
from attention_conformance.suite.spec.operators.sdpa import group


def header(
    options: Options, identity: Mapping[str, Any], partial: bool = False, **extra: str
) -> Header:
    """Returns the header of a run. `identity`: see `Plan.identity`. `partial`: cells were left out by
    arguments of pytest. `extra` is stored with the options."""
    origin = machine.origin()
    rerun_options = replace(options, backend=(), mode=Options.mode)
    origin["machine"]["thread_variables"] = present_thread_variables()
    return Header(
        digest=identity.get("digest", ""),
        cells=identity.get("cells", 0),
        versions=identity.get("versions", {}) | {"numpy": metadata.version("numpy")},
        options=asdict(options) | extra,
        partial=partial or bool(options.implementation or options.dtype),
        shard=options.shard,
        controls=tuple(identity.get("controls", ())),
        again=tuple(rerun_options.command_line()),
        **origin,
    )


def cell_name(cell: Cell) -> str:
    """Returns the name of a cell within its check: "torch:sdpa-math/sdpa/none/mha/f32/..."."""
    return f"{cell.implementation}/{cell.case.id}"


def record(cell: Cell, verdict: Verdict) -> CellRecord:
    """Returns the record of a judged cell."""
    return CellRecord(
        **_identity(cell),
        **_case_fields(cell.case),
        status=verdict.status,
        kind=verdict.kind,
        message=verdict.message,
        inherited=verdict.inherited,
        **vars(verdict.measured),
        seconds=round(verdict.seconds, 6),
        numerics=cell.numerics,
        seed=cell.seed,
    )


def record_key(cell: Cell) -> tuple:
    """Returns the key of a cell's record."""
    return CellRecord(**_identity(cell), status="pass", seed=cell.seed).key


def _identity(cell: Cell) -> dict[str, Any]:
    implementation = cell.implementation
    return {
        "case": cell.case.id,
        "check": cell.check.name,
        "backend": implementation.backend.name,
        "implementation": implementation.name,
        "mode": implementation.mode,
        "device": implementation.backend.device,
        "dtype": cell.case.dtype.name,
    }


def _case_fields(case: AnyCase) -> dict[str, Any]:
    """Returns the fields of a case in a record, without its id."""
    return {
        "group": group(case) if isinstance(case, Case) else case.group,
        "operator": case.operator.name,
        "question": case.question.name if isinstance(case, ElectionCase) else "",
        "features": case.needs,
        "facts": case.facts,
    }


def crashed(check: str, name: str, kind: str, message: str, options: Options) -> CellRecord:
    """Returns the record of a cell whose process died or exceeded its time limit. Only the name of the
    cell is known (`cell_name`)."""
    implementation, _, case_id = name.partition("/")
    backend, _, short = implementation.partition(":")
    case = find(case_id)
    return CellRecord(
        case=case_id,
        check=check,
        backend=backend,
        implementation=short,
        mode=mode_of(short),
        device=options.device,
        dtype=case.dtype.name,
        **_case_fields(case),
        status="crash",
        kind=kind,
        message=message,
        seed=options.seed,
    )
