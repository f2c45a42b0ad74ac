"""The report room: records in, tables and pages out.

Works on result files alone, on a machine that has none of the frameworks. Nothing is parsed: every fact
is a column of a record.

commands     the command line: add_report_parser, add_diff_parser
kinds        what a path holds, the frames that are read of it, and its tables, each by its name
frames       result files -> DataFrames with documented columns: cells, runs, measurements, asv_results
table        what a table is: Table
conformance  statuses, unsupported, conformance, accuracy, gradients, kernels, explained, only_here,
             everywhere, failures, slowest
semantics    elections, invariance, layers
speed        speed, speedup, exactness, cost_law, refused, samples; asv's tables
explanation  why cells fail, by separation; laws, laws of cost; plots, pictures of speed
swept        sweeps, read run by run; sweeps, their tables; sweep_diff, what changed between two
diff         what changed between two runs: compare, new_failures, summary, header_changes
render       tables -> text, Markdown, CSV, Parquet or one HTML page: render
summary      what a person who just ran the suite wants to see

A table is a declaration over one frame. Importing the package, `kinds`, `commands` or the declarations
does not yet load pandas.
"""

from __future__ import annotations

FORMATS = ("text", "markdown", "csv", "html", "parquet")
"""How tables can be written."""

DATA_FORMATS = ("csv", "parquet")
"""The formats that hold the figures as they are, in one file per table."""
