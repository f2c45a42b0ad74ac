"""Sweeps: many runs and searches at once, on many machines.

A plan file lists runs and searches (`plan`). Each is a command in its own process (`child`). Ray
schedules and retries them (`cluster`). A folder holds their result files (`run`, `suite.records.sweeps`).
Sweeps measure no speed.

Importing the package imports neither Ray nor a framework.
"""
