"""A diagnosis: one sentence about what is wrong, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """A sentence about what is wrong with an implementation, and how many of its failures this explains.

    - `sentence`: for people, with numbers where they were measured: "A causal query sees the next key."
    - `hint`: code that people write by which this happens; "" if unknown
    - `family`: the kind of the fault: mask, scale, heads ...
    - `source`: "catalogue" or "measured"
    - `explains`, `tried`: the numbers of failing cells that the fault explains, and that were tried
    - `contradicts`: the number of tried passing cells that the fault would fail
    - `case`: the id of the smallest failing case that is explained
    - `fault`: the name of the catalogue's fault
    - `key`: the symptom without numbers of the inputs; see `Symptom`
    - `picture`: lines of text, at most 12 x 12 entries, the expected mask and the used one
    """

    sentence: str
    hint: str
    family: str
    source: str
    explains: int
    tried: int
    contradicts: int
    case: str
    fault: str = ""
    picture: str = ""
    key: str = ""
