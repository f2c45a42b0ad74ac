"""The report room: records in, tables and pages out.

Works on result files alone, on a machine that has none of the frameworks.

tables    runs -> pandas DataFrames: build, cells, runs, statuses, conformance, conformance_long,
          accuracy, gradients, kernels, elections, invariance, layers, failures, only_here,
          everywhere, slowest
diff      what changed between two runs: compare, new_failures, summary, header_changes
render    tables -> text, Markdown, CSV, Parquet or one HTML page: render
speed     speed records, and asv's results -> DataFrames; plots, pictures of them
commands  the command line: add_report_parser, add_diff_parser

Importing the package, or `commands`, does not yet load pandas.
"""

from __future__ import annotations

FORMATS = ("text", "markdown", "csv", "html", "parquet")
"""How tables can be written."""

TABLES = {
    "runs": "What was run: versions, machine, options.",
    "statuses": (
        "Cells per status. The score is pass / all cells: what is unsupported counts in the "
        "denominator."
    ),
    "conformance": (
        "Cells passed / asked in every group of cases, with what else became of them in brackets; "
        "what is then left is unsupported."
    ),
    "accuracy": (
        "The checks values and layer_values: error ratio = max |error| / bound of the declared "
        "numerics class; the grade is the narrowest class whose bounds hold for all cells (exact, "
        "fused and eager coincide for f32 and f64); beyond counts the cells outside their bound."
    ),
    "gradients": (
        "The checks gradients and gradient_of_bias: the largest error ratio of each operand's gradient, "
        "in the bound that is derived for the declared class, and the widest grade."
    ),
    "kernels": (
        "Which kernels compiled implementations ran, in their framework's own words, with the number of "
        "cells."
    ),
    "elections": (
        "Answers as observed where the field has no single right one, by dtype where dtypes "
        "differ; - where the question cannot be put."
    ),
    "invariance": (
        "Whether answers hang on what is computed beside them: a second call, other samples, other "
        "rows, the number of threads, decoding one token at a time, keys in two parts that are merged. "
        "The worst grade, by dtype where dtypes differ: bitwise the same; within bound, other bits as "
        "near as rounding explains; broken. - where it cannot be asked."
    ),
    "layers": (
        "What each layer does where layers differ: rows and samples without keys, what True means in "
        "a mask, the causal flag beside a mask, which weights it returns while dropout is on, and "
        "what it can be asked for."
    ),
    "only_here": "Failures of exactly one implementation where at least one other passes.",
    "everywhere": "Failures of every implementation that supports the case, at least two.",
    "failures": "Every cell that crashed, broke or failed, expected or not.",
    "slowest": "The cells that took longest to judge.",
    "cells": "One row per cell, as recorded.",
}
"""The tables a report can hold, in their order, with what they say."""

SPEED_TABLES = {
    "speed": (
        "What was timed, for answers judged right: the median of a call and its quartiles in ms, shares "
        "of the machine's best matrix product and copy, the first call, the most memory held."
    ),
    "speedup": "Seconds of the baseline over those of each implementation: 2 is twice as fast.",
    "exactness": "The largest error ratio beside the share of the best matrix product.",
    "cost_law": (
        "T(L) = a + b L + c L^2 of the sweep, with 95 % intervals: a and b in microseconds, c in "
        "nanoseconds a pair of a query and a key."
    ),
    "refused": "Times that were not kept, and why.",
    "samples": "Every sample, in seconds.",
}
"""The tables of speed records, in their order, with what they say."""

ASV_TABLES = {
    "asv_history": "asv's values, a column per commit: seconds, bytes, or what the benchmark counts.",
    "asv": "asv's results, in asv's units; value NaN where a benchmark failed or has no value.",
}
"""The tables of a folder of asv's results; in text, Markdown and HTML the first one."""
