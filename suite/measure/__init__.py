"""Speed: measured in worker processes by one protocol, for answers that were judged right.

protocol  how often, how long, and when a figure is not to be trusted
call      one implementation's call, made ready, timed and judged
worker    the process that holds timed calls; pool, its driver
run       every workload in every implementation, round-robin
gate      one against another in ping-pong pairs, with their error rates
command   `python -m suite bench`
benchmark the classes that asv's benchmarks are made of
releases  an asv project whose time axis is the releases of a framework

What a call computes at least is counted by its operator (`suite.spec.operator.Work`). See docs/speed.md.
"""
