"""Golden files: what the suite asks, how far rounding may move it, and what it says and does.

    python -m tests.frozen compare [PART...]                by default all but statuses
    python -m tests.frozen compare --quick                  what the tests compare
    python -m tests.frozen write [PART...]
    python -m tests.frozen compare statuses RESULTS...      files of `pytest suite --results=FILE`
    python -m tests.frozen write statuses RESULTS...        the backends that these files judge

A part is a name and a function that makes its lines (`tests.frozen.part`):

    ids          smoke.txt, standard.txt, full.txt: the id of every case of a level, with its checks
    bounds       the bounds of 300 cells
    refused      ids and command lines that are refused, with what is said
    kills        for every fault the first case that its check fails, and the kind; at smoke and standard
    told         the first sentence of the diagnosis of kernels and faults, and what shows exploits
    transcripts  what commands of the README and of docs print, a file each
    statuses     the status of every cell of four backends at standard

A change of these files stands in a commit that says why.
"""
