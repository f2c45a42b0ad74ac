"""A finding of the diagnosis: one sentence about what is wrong, with its evidence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with an implementation, in a sentence, and how much of its failures that explains.

    - `sentence`: for people, with numbers where they were measured: "A causal query sees the next key."
    - `hint`: what people write in code that does this; "" if unknown
    - `family`: the kind of the fault: mask, scale, heads ...
    - `source`: "catalogue" or "measured"
    - `explains`, `tried`: the failing cells that behave so, and those that were tried
    - `contradicts`: the passing cells tried that the fault would fail
    - `case`: the id of the smallest failing case that is explained
    - `fault`: the name of the catalogue's fault, or "A + B" for a pair
    - `key`: what was measured, without numbers of the inputs; see `Symptom`
    - `picture`: lines of text, at most 12 x 12 entries, expected beside got
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
