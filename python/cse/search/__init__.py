"""Search over a corpus by vectors and by words, and rows to train on that are made from queries.

``index`` has the API: ``SearchIndex`` builds, opens, updates and searches an index folder. Under it, ``rows`` reads and
writes the file of rows, and ``searching`` answers queries of one state of an index. ``vectors`` implements exact search
by dot products, ``bm25`` search by words (split as ``terms`` says), ``fusion`` and ``hybrid`` the combination of both,
and ``mining`` rows to train on. Rows with equal scores are ranked in order of row number.
"""
