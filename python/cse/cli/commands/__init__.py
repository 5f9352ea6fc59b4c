"""The commands of ``cse``, by subject; ``cse.cli.group`` lists the file of each command."""
