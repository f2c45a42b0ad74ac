"""Machine-made mutants: faults that nobody chose, a tool for people who build the suite.

The tool changes one thing in the attention code of a released framework as it is installed. A process
imports the framework with that change, and `pytest suite` must end red there. Somebody reads every
survivor once (`survivors.toml`). Nothing on disk is touched.

    python -m tests.mutation --framework=torch --count=60 --seed=9 --results=mutants.jsonl
    python -m tests.mutation --table mutants.jsonl

Sources: DeMillo, Lipton, Sayward, Hints on test data selection, IEEE Computer 11(4), 1978; Offutt et al.,
An experimental determination of sufficient mutant operators, ACM TOSEM 5(2), 1996.
"""
