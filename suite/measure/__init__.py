"""Speed: worker processes time calls by one protocol. A time is kept only if its answer is right.

protocol  length and number of samples, and when a time is refused
clock     times calls in this process, or in the child of a user function
function_facts  facts about a user's function: its form that watches forbidden calls, the round trip
call      one implementation's call: prepared, timed and judged
worker    the process that holds timed calls
pool      starts, asks and ends workers
run       times every workload in every implementation, round-robin
gate      compares two implementations in ping-pong pairs, with error rates
command   `attention-conformance bench`
benchmark base classes of the asv benchmarks
releases  lock files of releases, and asv's configuration that measures them

pyperf does not serve here: it starts some 20 processes for a benchmark, and JAX and TensorFlow take
seconds to start. One process of each framework holds all its calls, and answers are judged in it.

The operator counts the operations and bytes of a call (`suite.spec.operator.Work`). See docs/speed.md.
"""
