"""Vector search over a corpus: nearest rows, near-duplicates, clusters and hard negatives.

``index`` builds, opens and searches an index folder, whose files are described in ``store``. ``nearest`` and ``pairs``
implement exact search over its vectors, ``bm25`` implements search by words, and combines two rankings.
Rows with equal scores are ranked in order of row number. ``joined_parts`` searches the output of
``cse encode --parts``; ``mining`` selects hard negatives, and ``clusters`` groups rows.
"""
