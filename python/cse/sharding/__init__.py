"""Processes a corpus of many files into one output part per file, on this machine or on a Ray cluster.

``parts`` keeps track of the parts, ``jobs`` defines how one is made, and ``engines`` makes them.
"""
