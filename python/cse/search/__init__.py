"""Search over a corpus by vectors and by words, near-duplicates, clusters and hard negatives.

``index`` has the API: ``SearchIndex`` builds, opens, updates and searches an index folder. Under it, ``store`` defines
the files of the folder, ``build`` writes them, and ``searching`` answers queries of one state of an index. ``vectors``
implements exact search by dot products, ``bm25`` search by words (split as ``terms`` says), ``fusion`` and ``hybrid``
the combination of both, ``tokens`` ranking again by the vectors of tokens, and ``one_vector`` one vector for both.
Rows with equal scores are ranked in order of row number. ``joined_parts`` searches the output of
``cse encode --parts``; ``pairs`` finds near-duplicates, ``mining`` hard negatives, and ``clusters`` groups of rows.
"""
