"""The mutation room: faults that nobody chose.

One thing is changed by machine in the attention code of a released framework as it is installed, a
process imports the framework with that change, and `pytest suite` must end red. What survives is read
once (`suite/records/survivors.toml`). Nothing on disk is touched.

Sources: DeMillo, Lipton, Sayward, Hints on test data selection, IEEE Computer 11(4), 1978; Offutt et al.,
An experimental determination of sufficient mutant operators, ACM TOSEM 5(2), 1996.
"""
