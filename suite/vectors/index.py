"""The schema of what lies beside tensors: `index.json` of vectors, `runtime.json` of answers.

Both are structs here, whose fields say what they mean; `json_schema` is made of them, and the tables of
`docs/vectors.md` are held against them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from suite.spec.elections import QUESTIONS
from suite.spec.text import did_you_mean
from suite.vectors.tensors import sha256

SCHEMA = 1
"""The version of both schemas."""

INDEX, RUNTIME, JSON_SCHEMA = "index.json", "runtime.json", "index.schema.json"
"""The files beside tensors."""


class VectorsError(Exception):
    """Vectors or answers cannot be used; the message names the file and what to do."""


def said(text: str) -> Meta:
    """What a field means."""
    return Meta(description=text)


Text = Annotated[str, Meta(min_length=1)]


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON object with these fields and no others."""


class Output(Struct, frozen=True):
    """Something that a runtime answers with: a tensor of its file."""

    axes: Annotated[str, said("a letter for every axis (see Axes)")]
    shape: Annotated[tuple[int, ...], said("its shape")]
    type: Annotated[
        str, said("the narrowest type that it can have; a wider floating-point type is one, too")
    ]
    bounds: Annotated[
        dict[str, str],
        said(
            "of each numerics class the name of the tensor with its bound; classes that share a bound "
            "share the tensor; none of an election"
        ),
    ]


class Hidden(Struct, frozen=True):
    """What the tensor `mask` of a case hides, in words."""

    token: Annotated[str, said("the mask's part of the case id")]
    form: Annotated[
        str, said("how a framework is asked: `native`, by its own flags; `dense`, by an array")
    ]
    parts: Annotated[
        tuple[dict[str, Any], ...],
        said("the masks that must all allow a pair: `kind`, and numbers by name"),
    ]


class Entry(Struct, frozen=True):
    """A case, or a question of what a runtime elects."""

    case: Annotated[str, said("its id, in the grammar of `suite/spec/case.py`")]
    kind: Annotated[str, said("`case`, or `election`: one that has no expected answer")]
    file: Annotated[str, said("its file, and the name of the file that answers it")]
    sha256: Annotated[str, said("the SHA-256 of the file")]
    inputs_sha256: Annotated[
        str, said("the SHA-256 of a file with the tensors of `inputs` alone, by which it is judged")
    ]
    operator: Annotated[str, said("what is computed")]
    dtype: Annotated[str, said("the type of inputs and output")]
    sizes: Annotated[dict[str, int], said("B, H, Hkv, Lq, Lk, D, Dv; of layers widths, too")]
    options: Annotated[
        dict[str, Any], said("what is asked beside arrays, by name; null: the operator's default")
    ]
    needs: Annotated[
        tuple[str, ...], said("what a runtime must have for it; `unsupported` can name them")
    ]
    mask: Annotated[Hidden | None, said("what the mask hides, in words; null where there is none")]
    flag: Annotated[
        str, said("`causal`: set the causal flag of the runtime, which no tensor holds; else empty")
    ]
    inputs: Annotated[
        dict[str, str], said("the tensors to compute with, with the letters of their axes")
    ]
    answers: Annotated[
        dict[str, Output], said("the tensors to answer with; of others none is read")
    ]
    elections: Annotated[
        tuple[str, ...], said("the questions that decide what its rows without keys give")
    ]
    checks: Annotated[tuple[str, ...], said("the checks that judge its answer")]


class Question(Struct, frozen=True):
    """A question on which the field has no single right answer."""

    text: Annotated[str, said("the question; an answer completes it")]
    answers: Annotated[
        tuple[str, ...], said("the answers that were seen; expected values follow the first one")
    ]


class Index(Struct, frozen=True):
    """`index.json`: what a folder of vectors holds."""

    schema: Annotated[int, said("the version of this schema, 1")]
    suite: Annotated[str, said("the version of the suite that made the files")]
    level: Annotated[str, said("the level: `smoke`, `standard` or `full`")]
    seed: Annotated[int, said("the seed of the values")]
    operators: Annotated[tuple[str, ...], said("the operators that were asked for; empty: all")]
    dtypes: Annotated[tuple[str, ...], said("the dtypes that were asked for; empty: all")]
    digest: Annotated[str, said("the SHA-256 of all files, see Digests")]
    numerics: Annotated[
        tuple[str, ...], said("the numerics classes, from the narrowest bound to the widest")
    ]
    questions: Annotated[dict[str, Question], said("the questions of elections, by name")]
    cases: Annotated[tuple[Entry, ...], said("what is asked: cases, then elections")]


class Runtime(Struct, frozen=True):
    """`runtime.json`: who answered, and what is declared of it."""

    name: Annotated[Text, said("what tables call the runtime: letters, digits, `_`, `.`, `-`")]
    version: Annotated[Text, said("its version")]
    vectors: Annotated[
        str, said("the `digest` of the index that was answered; the judge holds it to that")
    ] = ""
    numerics: Annotated[
        str | dict[str, str],
        said("the numerics class that answers are held to, or one by dtype; default `stepwise`"),
    ] = {}
    elections: Annotated[
        dict[str, str | dict[str, str]],
        said("what it elects, by question, or by question and dtype; it is held to it"),
    ] = {}
    unsupported: Annotated[
        dict[str, str],
        said("why cases have no answer: a reason by feature, or by shell pattern of case ids"),
    ] = {}
    merges_mask_into_bias: Annotated[
        bool, said("a mask beside a bias is merged into it as -inf")
    ] = False


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `index.json`."""
    return msgspec.json.schema(Index)


def questions(names: Iterable[str]) -> dict[str, Question]:
    """Questions by name, as the index has them."""
    definitions = (QUESTIONS[name] for name in names)
    return {q.name: Question(q.text, q.options) for q in definitions}


def digest_of(files: Iterable[tuple[str, str]]) -> str:
    """The digest of files by their names and their SHA-256: that of what `sha256sum` prints, in the order
    of names."""
    lines = (f"{digest}  {name}\n" for name, digest in sorted(files))
    return sha256("".join(lines).encode())


def text_of(value: Any) -> str:
    """A struct or a schema as the text of a JSON file, the same for equal ones."""
    return json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=False) + "\n"


def read_index(folder: Path) -> Index:
    """The index of a folder of vectors. Raises VectorsError."""
    path = folder / INDEX
    document = _document(path, "make vectors with `python -m suite vectors --output=FOLDER`")
    number = document.get("schema")
    if isinstance(number, int) and number > SCHEMA:
        raise VectorsError(
            f"{path}: expected schema {SCHEMA}, got {number}: version {document.get('suite')!r} of the "
            "suite made these vectors; judge with that one"
        )
    return _typed(document, Index, path, "the file was changed: make the vectors anew")


def read_runtime(folder: Path) -> Runtime:
    """What is declared of the runtime that answered in a folder. Raises VectorsError."""
    path = folder / RUNTIME
    advice = 'it names who answered, at least {"name": ..., "version": ...}'
    document = _document(path, advice)
    unknown = sorted(set(document) - set(Runtime.__struct_fields__))
    if unknown:
        names = Runtime.__struct_fields__
        meant = did_you_mean(unknown[0], names)
        raise VectorsError(f"{path}: unknown field {unknown[0]!r}{meant} Valid: {', '.join(names)}")
    return _typed(document, Runtime, path, "correct it")


def _document(path: Path, advice: str) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(path.read_bytes())
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
