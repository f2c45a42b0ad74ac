"""Attention conformance suite: judges what an attention implementation computes, and how precisely.

`suite` has the cases, the judgement of answers, and the reports; `backends` has an adapter per
framework, and `references` the float64 definition, NumPy only. A checkout has the three as folders,
which are `attention_conformance.suite` and so on for Python.
"""

__version__ = "0.1.0"
