"""Processes a corpus of many files into one output part per file, on this machine or on a Ray cluster.

``parts`` keeps track of the parts, ``jobs`` defines the jobs that make them, and ``engines`` runs the jobs.
"""
