"""Read a folder of answers: its runtime, and its files by case."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from attention_conformance.suite.records.files import regular
from attention_conformance.suite.spec.operators import WORDS
from attention_conformance.suite.spec.text import did_you_mean
from attention_conformance.suite.vectors.index import (
    INDEX,
    RUNTIME,
    Entry,
    Index,
    Runtime,
    VectorsError,
    digest_of,
    read_index,
    read_runtime,
)
from attention_conformance.suite.vectors.tensors import SUFFIX, NoTensors, Tensor, decoded, sha256


@dataclass(frozen=True)
class Answers:
    """The answers of a runtime to the vectors of an index: files by case id."""

    folder: Path
    index: Index
    runtime: Runtime
    files: Mapping[str, Path]

    def read(self, case_id: str) -> dict[str, Tensor]:
        """The tensors of the answer to a case. Raises NoTensors."""
        try:
            return decoded(regular(self.files[case_id]).read_bytes())
        except OSError as error:
            raise NoTensors(str(error)) from error

    def reason(self, entry: Entry) -> str:
        """The reason why a case has no answer."""
        reasons = self.runtime.unsupported
        return next((why for key, why in reasons.items() if speaks_of(key, entry)), "no answer")


def read_answers(folder: Path, vectors: Path) -> Answers:
    """The answers in `folder` to the vectors in the folder `vectors`.

    Raises VectorsError in these cases: the folder does not exist, the vectors were changed, the answers
    are to other vectors or to unknown cases, or `runtime.json` contradicts the answers.
    """
    index = checked_index(vectors)
    if not folder.is_dir():
        raise VectorsError(f"there is no folder {folder}")
    runtime = read_runtime(folder)
    if runtime.vectors not in ("", index.digest):
        raise VectorsError(
            f"{folder / RUNTIME}: these answers are to the vectors {runtime.vectors[:12]}..., but "
            f"{vectors} holds {index.digest[:12]}...: answer the latter, or judge by the former"
        )
    by_file = {entry.file: entry for entry in index.cases}
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    for path in paths:
        if path.name not in by_file:
            raise VectorsError(
                f"{path} answers no case of {vectors / INDEX}: name an answer like the `file` of its "
                f"case{did_you_mean(path.name, by_file)}"
            )
    files = {by_file[path.name].case: path for path in paths}
    for problem in contradictions(runtime, index, files):
        raise VectorsError(f"{folder / RUNTIME}: {problem}")
    return Answers(folder, index, runtime, files)


def contradictions(runtime: Runtime, index: Index, files: Mapping[str, Path]) -> Iterator[str]:
    """Errors in `unsupported`: keys that match no case, and keys of cases that are answered."""
    for key in runtime.unsupported:
        meant = [entry for entry in index.cases if speaks_of(key, entry)]
        if not meant and key not in WORDS:
            yield (
                f"unsupported: {key!r} is neither a feature nor a pattern of a case of these vectors"
                f"{did_you_mean(key, WORDS)}"
            )
        answered = next((entry for entry in meant if entry.case in files), None)
        if answered is not None:
            yield (
                f"unsupported: {key!r} speaks of {answered.case}, which has an answer: remove the key or "
                "the answer"
            )


def speaks_of(key: str, entry: Entry) -> bool:
    """True if a key of `unsupported` (a feature, or a shell pattern of case ids) matches a case."""
    return key in entry.needs if key in WORDS else fnmatchcase(entry.case, key)


def checked_index(vectors: Path) -> Index:
    """The index of a folder of vectors. Raises VectorsError if a file was changed."""
    index = read_index(vectors)
    for entry in index.cases:
        path = vectors / entry.file
        try:
            same = sha256(regular(path).read_bytes()) == entry.sha256
        except OSError as error:
            raise VectorsError(f"{path} cannot be read: {error}; make the vectors anew") from error
        if not same:
            raise VectorsError(
                f"{path} differs from its digest in {vectors / INDEX}: the file was changed or cut off; "
                "make the vectors anew"
            )
    if digest_of((entry.file, entry.sha256) for entry in index.cases) != index.digest:
        raise VectorsError(f"{vectors / INDEX} was changed: make the vectors anew")
    return index
