"""Result files of runs, and manifests of expected failures.

lines         result files of one JSON object a line: one writer, one reader, errors with names
cells         records of judged cells: what `--results` of pytest writes
sweeps        folders of result files: the runs and searches of a sweep
searches      records of random searches: what `--results` of `search` writes
speed         records of measured times: what `--results` of `bench` writes
facts         records of what implementations compute: what `--results` of `explain` writes
files         new files and new folders, without overwriting
expectations  manifests of known failures
coverage      how many cells were judged, and whether that is enough
findings      the page of deviations of released software
machine       the machine and the checkout a run is made on

The room imports neither a framework nor the judge. So runs can be compared on a
machine without frameworks.
"""
