"""The engine of ``cse reproduce``: a table is rows, and a row is runs, which are scored.

Where a row is declared: ``cse_papers/tables/recipes.toml`` says what is trained for it, and ``published.toml`` there
what its paper prints; the rows of the laboratory (``cse reproduce effects``) are in ``effects.toml`` there. ``tables``
and ``effects`` read these files, ``own_rows`` reads those of a user (``--rows``).

A command, in order: ``command`` (options), ``inputs`` (files; the base of the laboratory: ``masked``, ``base_file``),
``cells`` (the names, folders and configurations of runs), ``stored`` (stored scores), ``work`` (which runs are wanted),
``runner`` (trains and scores one), ``scores`` (what an encoder is scored on). Then the tables: ``published`` (published
values and ours) or ``effects_tables``, with ``intervals``, and ``printed`` (text, JSON, CSV, LaTeX, plots).

Beside them: ``small`` (``--small``), ``smoke`` (``--smoke``), ``commands`` (``--print-commands``).
"""
