"""Training: configuration, batches, the training loop and its steps."""
