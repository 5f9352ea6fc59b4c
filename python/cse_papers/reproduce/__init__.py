"""The engine of ``cse reproduce``: a table is rows, and a row is runs (``cells``), which are scored.

- ``tables/recipes.toml`` and ``tables/effects.toml`` declare what is trained for a row, ``tables/published.toml`` what
  papers print; ``suites`` and ``effects`` read them.
- ``cells``: a run, its folder, its identity, and its stored scores; ``commands``: what a person types for it; ``work``:
  which runs are stored, and running the others; ``stored``: files of finished runs.
- ``results`` (published tables), ``measured`` (the laboratory) and ``small`` make the printed tables, with intervals
  from ``bootstrap`` and ``cse.evaluation.significance``.
- ``inputs``, ``masked`` and ``base_file``: data, and the base of the laboratory. ``command``: the command line.
"""
