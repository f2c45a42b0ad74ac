"""The schemas of `index.json` (vectors) and `runtime.json` (answers).

Each struct describes its fields. `json_schema` is derived from the structs, and a test compares them with
the tables of `docs/data/vector-files.md`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from attention_conformance.suite.records.files import regular
from attention_conformance.suite.spec.elections import QUESTIONS
from attention_conformance.suite.spec.text import did_you_mean
from attention_conformance.suite.vectors.tensors import sha256

SCHEMA = 1
"""The version of both schemas."""

INDEX, RUNTIME, JSON_SCHEMA = "index.json", "runtime.json", "index.schema.json"
"""The JSON files."""


class VectorsError(Exception):
    """Vectors or answers cannot be used; the message names the file and what to do."""


def described(text: str) -> Meta:
    """msgspec metadata with a field's description."""
    return Meta(description=text)


Text = Annotated[str, Meta(min_length=1)]


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with these fields and no others."""


class Output(Struct, frozen=True):
    """A tensor of an answer's file."""

    axes: Annotated[str, described("a letter for every axis (see Axes)")]
    shape: Annotated[tuple[int, ...], described("its shape")]
    type: Annotated[
        str,
        described("the narrowest type that it can have; a wider floating-point type is one, too"),
    ]
    bounds: Annotated[
        dict[str, str],
        described(
            "of each numerics class the name of the tensor with its bound; classes that share a bound "
            "share the tensor; none of an election"
        ),
    ]


class Hidden(Struct, frozen=True):
    """A symbolic description of a case's tensor `mask`."""

    token: Annotated[str, described("the mask's part of the case id")]
    form: Annotated[
        str, described("how a framework is asked: `native`, by its own flags; `dense`, by an array")
    ]
    parts: Annotated[
        tuple[dict[str, Any], ...],
        described("the masks that must all allow a pair: `kind`, and numbers by name"),
    ]


class Entry(Struct, frozen=True):
    """A case, or the probe of an election question."""

    case: Annotated[str, described("its id, in the grammar of `suite/spec/case.py`")]
    kind: Annotated[str, described("`case`, or `election`: one that has no expected answer")]
    file: Annotated[str, described("its file, and the name of the file that answers it")]
    sha256: Annotated[str, described("the SHA-256 of the file")]
    inputs_sha256: Annotated[
        str,
        described(
            "the SHA-256 of a file with the tensors of `inputs` alone, by which it is judged"
        ),
    ]
    operator: Annotated[str, described("what is computed")]
    dtype: Annotated[str, described("the type of inputs and output")]
    sizes: Annotated[dict[str, int], described("B, H, Hkv, Lq, Lk, D, Dv; of layers widths, too")]
    options: Annotated[
        dict[str, Any],
        described("what is asked beside arrays, by name; null: the operator's default"),
    ]
    needs: Annotated[
        tuple[str, ...], described("what a runtime must have for it; `unsupported` can name them")
    ]
    mask: Annotated[
        Hidden | None, described("what the mask hides, in words; null where there is none")
    ]
    flag: Annotated[
        str,
        described(
            "`causal`: set the causal flag of the runtime, which no tensor holds; else empty"
        ),
    ]
    inputs: Annotated[
        dict[str, str], described("the tensors to compute with, with the letters of their axes")
    ]
    answers: Annotated[
        dict[str, Output], described("the tensors to answer with; of others none is read")
    ]
    elections: Annotated[
        tuple[str, ...], described("the questions that decide what its rows without keys give")
    ]
    checks: Annotated[tuple[str, ...], described("the checks that judge its answer")]


class Question(Struct, frozen=True):
    """A question on which the field has no single right answer."""

    text: Annotated[str, described("the question; an answer completes it")]
    answers: Annotated[
        tuple[str, ...],
        described("the answers that were seen; expected values follow the first one"),
    ]


class Index(Struct, frozen=True):
    """`index.json`: the contents of a folder of vectors."""

    schema: Annotated[int, described("the version of this schema, 1")]
    suite: Annotated[str, described("the version of the suite that made the files")]
    level: Annotated[str, described("the level: `smoke`, `standard` or `full`")]
    seed: Annotated[int, described("the seed of the values")]
    operators: Annotated[
        tuple[str, ...], described("the operators that were asked for; empty: all")
    ]
    dtypes: Annotated[tuple[str, ...], described("the dtypes that were asked for; empty: all")]
    digest: Annotated[str, described("the SHA-256 of all files, see Digests")]
    numerics: Annotated[
        tuple[str, ...], described("the numerics classes, from the narrowest bound to the widest")
    ]
    questions: Annotated[dict[str, Question], described("the questions of elections, by name")]
    cases: Annotated[tuple[Entry, ...], described("what is asked: cases, then elections")]


class Runtime(Struct, frozen=True):
    """`runtime.json`: the runtime's name, version and declarations."""

    name: Annotated[Text, described("what tables call the runtime: letters, digits, `_`, `.`, `-`")]
    version: Annotated[Text, described("its version")]
    vectors: Annotated[
        str, described("the `digest` of the index that was answered; the judge holds it to that")
    ] = ""
    numerics: Annotated[
        str | dict[str, str],
        described(
            "the numerics class that answers are held to, or one by dtype; default `stepwise`"
        ),
    ] = {}
    elections: Annotated[
        dict[str, str | dict[str, str]],
        described("what it elects, by question, or by question and dtype; it is held to it"),
    ] = {}
    unsupported: Annotated[
        dict[str, str],
        described("why cases have no answer: a reason by feature, or by shell pattern of case ids"),
    ] = {}
    merges_mask_into_bias: Annotated[
        bool, described("a mask beside a bias is merged into it as -inf")
    ] = False


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `index.json`."""
    return msgspec.json.schema(Index)


def questions(names: Iterable[str]) -> dict[str, Question]:
    """The index's questions by name."""
    definitions = (QUESTIONS[name] for name in names)
    return {q.name: Question(q.text, q.options) for q in definitions}


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """The digest of files, given as (name, SHA-256): the SHA-256 of the output of `sha256sum`, sorted by
    name."""
    lines = (f"{digest}  {name}\n" for name, digest in sorted(files))
    return sha256("".join(lines).encode())


def text_of(value: Any) -> str:
    """The JSON text of a struct or schema; equal values have equal texts."""
    return json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=False) + "\n"


def read_index(folder: Path) -> Index:
    """The index of a folder of vectors. Raises VectorsError."""
    path = folder / INDEX
    document = _document(path, "make vectors with `attention-conformance vectors --output=FOLDER`")
    number = document.get("schema")
    if isinstance(number, int) and number > SCHEMA:
        raise VectorsError(
            f"{path}: expected schema {SCHEMA}, got {number}: version {document.get('suite')!r} of the "
            "suite made these vectors; judge with that version"
        )
    advice = "the file was changed: make the vectors anew"
    index = _typed(document, Index, path, advice)
    for entry in index.cases:
        if Path(entry.file).name != entry.file:
            raise VectorsError(f"{path}: expected the name of a file, got {entry.file!r}; {advice}")
    return index


def read_runtime(folder: Path) -> Runtime:
    """Read `runtime.json` of a folder of answers. Raises VectorsError."""
    path = folder / RUNTIME
    advice = 'it describes the runtime, at least {"name": ..., "version": ...}'
    document = _document(path, advice)
    unknown = sorted(set(document) - set(Runtime.__struct_fields__))
    if unknown:
        names = Runtime.__struct_fields__
        meant = did_you_mean(unknown[0], names)
        raise VectorsError(f"{path}: unknown field {unknown[0]!r}{meant} Valid: {', '.join(names)}")
    return _typed(document, Runtime, path, "correct it")


def _document(path: Path, advice: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(regular(path).read_bytes())
    except FileNotFoundError as error:
        raise VectorsError(f"there is no {path}; {advice}") from error
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise VectorsError(f"{path} cannot be read: {error}; {advice}") from error
    if not isinstance(document, dict):
        raise VectorsError(f"{path}: expected a JSON object; {advice}")
    return document


T = TypeVar("T")


def _typed(document: dict[str, Any], kind: type[T], path: Path, advice: str) -> T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise VectorsError(f"{path}: {error}; {advice}") from error
