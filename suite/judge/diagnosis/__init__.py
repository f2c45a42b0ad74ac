"""Diagnosis: what is wrong with an implementation, in sentences for people.

- `finding`: a sentence, and how much of the failures it explains
- `instrument`: measures what an implementation computes, one file a question
"""
