"""The TF-IDF index of a corpus, and its interfaces to Ray and scikit-learn."""
