"""The sweep room: many runs at once, on many machines.

A plan file says which runs there are (`plan`); each is what `pytest suite` with some options would be,
and leaves the same records. An engine (`cluster`, Ray) carries out tasks (`tasks`), the driver hands
them out and takes in what comes back (`driver`), and a folder holds it (`suite.records.sweeps`).
Nothing here times anything: speed is measured on one quiet machine.

Importing the package imports neither Ray nor a framework.
"""
