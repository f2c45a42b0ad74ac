"""Speed: measured in worker processes by one protocol, for answers that were judged right.

work      operations and bytes that a case asks for, counted from its mask
protocol  how often, how long, and when a figure is not to be trusted
subject   one implementation's call, made ready, timed and judged
worker    the process that holds subjects; pool, its driver
record    what a measurement leaves behind
run       every workload in every implementation, round-robin
gate      one against another in ping-pong pairs, with their error rates
command   `python -m suite bench`
benchmark the classes that asv's benchmarks are made of
releases  an asv project whose time axis is the releases of a framework

See docs/speed.md.
"""
