"""Corpora of many files: one output part per file, made on this machine or on a Ray cluster.

``parts`` keeps track of the parts, ``jobs`` make one part each, and ``engines`` run the jobs.
"""
