"""The folder of a run: saved encoders, checkpoints, locks and signals."""
