"""The configuration of a run: all settings, their defaults, and which of them may change."""
