"""Published systems other than SimCSE, Focal-InfoNCE, MixCSE, UNA and UDA, and the tables of their papers.

There is one module for each paper. ``cse`` finds the methods by the entry points in ``pyproject.toml``, as it finds
those of any other package.
"""
