"""Vector search over a corpus: nearest rows, near-duplicates, clusters and hard negatives.

``index`` builds, opens and searches an index folder, whose files are described in ``store``. ``nearest`` and ``pairs``
implement exact search over its vectors, ``bm25`` implements search by words, and ``fusion`` combines two rankings.
Rankings list rows with equal scores in the order of their numbers. ``joined_parts`` searches the output of
``cse encode --parts``; ``mining`` selects hard negatives, and ``clusters`` groups rows.
"""
