"""Processes a corpus of many files into one output part per file, on this machine or on a Ray cluster."""
