"""The command `search` of `attention-conformance`.

Exit codes: 0 no failure was found; 1 a failure was found, or the search process died; 2 the arguments
cannot be used, or no cell passed.
"""

from __future__ import annotations

from attention_conformance.suite.records.searches import FoundRecord
from attention_conformance.suite.search.options import SearchOptions


def run(options: SearchOptions) -> int:
    """Run the command `search` in a fork of this process, and return its exit code. If the fork dies, the
    failure is still written to the results. Without forks the search runs in this process."""
    from attention_conformance.suite.run.process import can_fork, run_in_fork
    from attention_conformance.suite.search.engine import search, write

    if not can_fork():
        return search(options)
    advice = "`attention-conformance search --case=ID`, with the id above, judges that case alone"
    code, facts = run_in_fork(lambda board: search(options, board), advice)
    if options.results and "code" not in facts and "judging" in facts:
        write(options, [FoundRecord(**facts["judging"])])
    return code
