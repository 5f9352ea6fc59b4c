"""Finding, loading, running and saving encoders."""
