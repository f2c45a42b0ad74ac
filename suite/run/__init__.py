"""Options, the plan of a run, child processes, the pytest plugin and the command line."""
