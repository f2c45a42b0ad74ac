"""Attention conformance suite: judges what an attention implementation computes, and how precisely.

Three packages make up the checkout: `suite` (what is asked, how answers are judged, the reports),
`backends` (one adapter per framework) and `references` (the float64 definition, NumPy only).
"""

__version__ = "0.1.0"
