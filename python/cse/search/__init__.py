"""Vectors of a corpus and what is found with them: nearest rows, duplicates, groups, hard negatives.

``index`` builds, opens and searches an index folder, whose files are described in ``store``; ``nearest`` and ``pairs``
are the exact searches over its vectors.
"""
