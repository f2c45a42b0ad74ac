"""The report room: records in, tables and pages out.

Works on result files alone, on a machine that has none of the frameworks. Nothing is parsed: every fact
is a column of a record.

kinds        which kinds of result files there are, and the tables that are made of each
frames       runs -> one pandas DataFrame, a row per cell: cells, runs, labels
conformance  statuses, conformance, conformance_long, failures, only_here, everywhere, slowest
precision    accuracy, gradients, kernels
semantics    elections, invariance, layers
tables       the tables of judged cells by name: tables_of_cells
build        result files of a kind -> its tables: tables_of
speed        speed records -> DataFrames; asv, the results of asv; plots, pictures of speed
swept        sweeps, read run by run; sweeps, their tables; sweep_diff, what changed between two
diff         what changed between two runs: compare, new_failures, summary, header_changes
render       tables -> text, Markdown, CSV, Parquet or one HTML page: render
summary      what a person who just ran the suite wants to see
commands     the command line: add_report_parser, add_diff_parser

Importing the package, `kinds`, `build` or `commands` does not yet load pandas.
"""

from __future__ import annotations

FORMATS = ("text", "markdown", "csv", "html", "parquet")
"""How tables can be written."""

DATA_FORMATS = ("csv", "parquet")
"""The formats that hold the figures as they are, in one file per table."""
