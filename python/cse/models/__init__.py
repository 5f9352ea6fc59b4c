"""Finding, running and saving an encoder."""
