"""Published tables, and the runs that reproduce them (``cse reproduce``)."""
