"""Encoders: finding and reading models, running them, and saving them."""
