"""Reads text files and tables into rows, and keeps them in a cache; no file of this folder imports torch."""
