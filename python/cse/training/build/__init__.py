"""The parts of a run: checks, construction and description of each."""
