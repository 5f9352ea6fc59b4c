"""Search over a corpus by vectors and by words, and rows to train on that are made from queries.

Rows with equal scores are ranked in order of row number.
"""
