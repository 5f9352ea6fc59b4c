"""The code of ``cse reproduce``: published tables, and the runs that reproduce them."""
