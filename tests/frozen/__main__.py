"""Compare golden parts, or write them as they are now."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from attention_conformance.backends.threads import limit_threads
from tests.frozen import statuses
from tests.frozen.asked import BOUNDS, IDS
from tests.frozen.kills import KILLS
from tests.frozen.part import SETTINGS, Part
from tests.frozen.refused import REFUSED
from tests.frozen.told import TOLD
from tests.frozen.transcripts import TRANSCRIPTS

PARTS: list[Part] = [*IDS, BOUNDS, REFUSED, *KILLS, *TOLD, TRANSCRIPTS]


def main(words: Sequence[str] | None = None) -> int:
    """Compare or write. Returns 1 if something differs."""
    names = list(dict.fromkeys(name for part in PARTS for name in (part.group, part.name)))
    parser = argparse.ArgumentParser("python -m tests.frozen")
    parser.add_argument("deed", choices=("compare", "write"))
    parser.add_argument("parts", nargs="*", help=f"{', '.join(names)}; or statuses RESULTS...")
    parser.add_argument("--quick", action="store_true", help="compare what the tests compare")
    given = parser.parse_args(words)
    if given.parts[:1] == ["statuses"]:
        return statuses.main(given.deed, given.parts[1:])
    if wrong := set(given.parts) - {*names}:
        parser.error(f"expected {', '.join(names)} or statuses, got {', '.join(sorted(wrong))}")
    chosen = [one for one in PARTS if not given.parts or {one.group, one.name} & {*given.parts}]
    if given.deed == "write":
        for part in chosen:
            print(part.name, flush=True)
            part.write()
        return 0
    lines = [line for part in chosen for line in compared(part, given.quick)]
    print("\n".join(lines) or "nothing differs")
    return int(bool(lines))


def compared(part: Part, quick: bool) -> list[str]:
    """What differs in a part, or in its quick share."""
    if not quick:
        return part.compare()
    return part.compare(part.quick) if part.quick else []


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    limit_threads(1)
    sys.exit(main())
