"""Faster forward passes: dropout on the CPU, batches without padding, joint casts, and rows of similar length."""
