"""Tables and pages from result files, on a machine without frameworks.

commands     the command line: report, diff, findings
kinds        kinds of results, with their frames and their tables by name
frames       result files -> DataFrames with documented columns: cells, runs, measurements, asv_results
table        the declaration of a table: Table
conformance  statuses, unsupported, conformance, accuracy, gradients, kernels, explained, failures
semantics    elections, identification, invariance, together
speed        speed, speedup, exactness, cost_law, refused, samples; asv's tables
explanation  why cells fail, with `separation`
laws, plots  cost laws and plots of speed
swept        frames of sweeps; `sweeps` has their tables
overview     the first screen of a page: implementations beside `topics`
diff         changes between two runs or sweeps: difference, new_failures
site         a folder of pages: the matrix, and a page for every implementation
render       tables -> text, Markdown, CSV, Parquet or one HTML page: render
badge        small pictures with verdict, precision and coverage of runs
summary      the summary at the end of a run

A table is a declaration over one frame. Importing the package, `kinds`, `commands` or the declarations
does not import pandas.
"""

from __future__ import annotations

FORMATS = ("text", "markdown", "csv", "html", "parquet")
"""Output formats of tables."""

SITE = "site"
"""The format of a report with a page for all implementations, and a page for each."""

DATA_FORMATS = ("csv", "parquet")
"""Formats with unrounded figures, in one file per table."""
