"""The TF-IDF index of a corpus."""
