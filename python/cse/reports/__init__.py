"""Reads stored runs, and makes pictures and report pages from them."""
