"""The sweep room: many runs and searches at once, on many machines.

A plan file says which runs and searches there are (`plan`). Each is a plain command in a process of its
own (`child`). Ray schedules, places and retries them (`cluster`), and a folder holds their result files
(`run`, `suite.records.sweeps`). Nothing here times anything: speed is measured on one quiet machine.

Importing the package imports neither Ray nor a framework.
"""
