"""The questions of the suite: problems, masks, input recipes, elections and the catalogue of cases.

Imports NumPy and the standard library only, so cases can be read without any framework.
"""
