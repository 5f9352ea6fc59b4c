"""Encoding texts with a model: encoders, pooling over passages, generation, and faster forward passes."""
