"""Corpora of many files: one output part per file, made on this machine or on a Ray cluster.

``parts`` says what is to be made and what is there already, ``jobs`` make a part, ``engines`` run them.
"""
