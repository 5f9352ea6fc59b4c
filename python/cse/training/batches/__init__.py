"""The batches of a run: rows, texts and tokens, and checks of the corpus."""
