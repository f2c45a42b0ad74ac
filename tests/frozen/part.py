"""A golden part: a name and a function that makes its lines; and how two makings differ."""

from __future__ import annotations

import difflib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent

SETTINGS = {
    "ONEDNN_MAX_CPU_ISA": "AVX2", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}  # fmt: skip
"""The environment in which kernels are judged. With AMX a NaN in one row of a bfloat16 product appears in
the row before it (`amx-nan-row`), which fails right kernels on some CPUs alone. TensorFlow's oneDNN
crashes without AMX on a CPU that has it."""

SHOWN = 20
"""How many lines of each kind a difference shows."""

Wanted = Callable[[str], bool]
"""True for the keys that are made."""

Texts = dict[str, str]
"""The text of every key."""

Same = Callable[[str, str, str], bool]
"""`same(key, before, now)` is true if two texts of a key count as equal."""


def everything(key: str) -> bool:
    return True


def one_in(count: int) -> Wanted:
    """The keys of a part of this share, chosen by their hashes."""
    return lambda key: zlib.crc32(key.encode()) % count == 0


def equal(key: str, before: str, now: str) -> bool:
    return before == now


@dataclass(frozen=True)
class Part:
    """A file of lines "KEY: TEXT", sorted by key.

    - `group`: the word that the command takes
    - `name`: the file's, without its suffix
    - `make`: gives the texts of the wanted keys
    - `quick`: the keys that the tests compare, None for none
    - `note`: the first line of the file, "" for none
    """

    group: str
    name: str
    make: Callable[[Wanted], Texts]
    quick: Wanted | None = None
    same: Same = equal
    separator: str = ": "
    note: str = ""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    def read(self) -> Texts:
        """The frozen texts by key; none if there is no file."""
        if not self.path.exists():
            return {}
        lines = self.path.read_text(encoding="utf-8").splitlines()
        # A line that ends with the separator has an empty text.
        pairs = (f"{line} ".partition(self.separator) for line in lines if line[:1] != "#")
        return {key: text.strip() for key, _, text in pairs}

    def write(self) -> None:
        """Write the texts as they are now."""
        lines = [
            f"{k}{self.separator}{text}".rstrip()
            for k, text in sorted(self.make(everything).items())
        ]
        lines = [f"# {self.note}", *lines] if self.note else lines
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def compare(self, wanted: Wanted = everything) -> list[str]:
        """What differs among the wanted keys, as lines for people."""
        before = {key: text for key, text in self.read().items() if wanted(key)}
        return [f"{self.name}: {line}" for line in difference(before, self.make(wanted), self.same)]


class Folder(Part):
    """A folder with a file for every key: texts of several lines."""

    @property
    def path(self) -> Path:
        return FOLDER / self.name

    def read(self) -> Texts:
        return {p.stem: p.read_text(encoding="utf-8") for p in sorted(self.path.glob("*.txt"))}

    def write(self) -> None:
        made = self.make(everything)
        self.path.mkdir(exist_ok=True)
        for path in self.path.glob("*.txt"):
            path.unlink()
        for key, text in made.items():
            (self.path / f"{key}.txt").write_text(text, encoding="utf-8")


def difference(before: Mapping[str, str], now: Mapping[str, str], same: Same = equal) -> list[str]:
    """The lines that were removed, added or changed, the first `SHOWN` of each under their number."""
    kinds = {
        "removed": [f"- {k} {_first(x)}".rstrip() for k, x in before.items() if k not in now],
        "added": [f"+ {k} {_first(x)}".rstrip() for k, x in now.items() if k not in before],
        "changed": [
            _changed(k, x, now[k]) for k, x in before.items() if k in now and not same(k, x, now[k])
        ],
    }  # fmt: skip
    return [
        line
        for kind, lines in kinds.items()
        if lines
        for line in (f"{len(lines)} {kind}:", *sorted(lines)[:SHOWN])
    ]


def _first(text: str) -> str:
    return text.partition("\n")[0]


def _changed(key: str, before: str, now: str) -> str:
    """One line, or the lines of texts of several lines that differ."""
    if "\n" not in before:
        return f"~ {key} {before} -> {now}"
    lines = difflib.ndiff(before.splitlines(), now.splitlines())
    return "\n".join([f"~ {key}", *(f"  {line}" for line in lines if line[0] in "+-")])
