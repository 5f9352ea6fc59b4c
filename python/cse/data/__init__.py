"""Reads text files and tables into rows. No module in this package imports torch."""
