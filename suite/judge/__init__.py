"""Judge answers: oracle and tolerance, answers, cells, checks, verdicts.

This room imports neither pytest nor a framework.
"""
