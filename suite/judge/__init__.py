"""How an answer is judged: oracle and tolerance, verdicts, one cell, expectations, records.

Imports neither pytest nor a framework.
"""
