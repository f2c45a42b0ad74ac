"""The records room: what a run leaves behind, and what is expected of the next one.

lines         result files of one JSON object a line: one writer, one reader, errors with names
cells         records of judged cells: what `--results` of pytest writes
sweeps        folders of result files: the runs and searches of a sweep
searches      records of random searches: what `--results` of `search` writes
speed         records of measured times: what `--results` of `bench` writes
files         new files and new folders: nothing a user produced is overwritten
expectations  manifests of known failures
findings      the page of what was found in released software
machine       the machine and the checkout a run is made on

Needs neither a framework nor the judge: a comparison of runs works wherever their files are.
"""
