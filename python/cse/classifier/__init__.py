"""Labels for the rows without one: the classifier of a run, its confidence, and what labelled rows promise about it."""
