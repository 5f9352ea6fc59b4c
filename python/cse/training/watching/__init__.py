"""What a run measures: scores that select best/, log records, and signs of failure."""
