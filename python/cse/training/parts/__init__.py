"""The parts of a run, in the order in which they are built: settings, checks, construction and description of each."""
