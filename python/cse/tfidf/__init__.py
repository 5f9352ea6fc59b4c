"""The TF-IDF index of a corpus, and its front ends for Ray and scikit-learn."""
