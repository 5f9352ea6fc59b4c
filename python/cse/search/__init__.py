"""Vector search over a corpus: nearest rows, near-duplicates, clusters and hard negatives.

``index`` builds, opens and searches an index folder, whose files are described in ``store``; ``nearest`` and ``pairs``
implement the exact searches over its vectors.
"""
