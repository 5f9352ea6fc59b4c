"""Corpora of many files: one output part per file, made on this machine or on a Ray cluster.

``parts`` keeps track of the parts, ``jobs`` defines the jobs that make them, and ``engines`` runs the jobs.
"""
