"""A training step: forward passes, losses, gradients and processes, and the state that it changes."""
