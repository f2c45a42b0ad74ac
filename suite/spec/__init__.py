"""What is asked: problems, masks, input recipes, elections and the catalogue of cases.

NumPy and the standard library only, so that a case can be read on a machine without any framework.
"""
