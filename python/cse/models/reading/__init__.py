"""Finding a model, and reading the files of its folder."""
