"""Published tables, and the runs that repeat them: what ``cse reproduce`` does."""
