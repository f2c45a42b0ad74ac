"""The front: options, the plan of a run, the pytest plugin and the command line."""
