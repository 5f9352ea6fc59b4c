"""Reads stored runs, and makes plots and report pages from them."""
