"""Runs the command line as ``python -m cse``, equivalent to ``cse``."""

from .cli import main

if __name__ == "__main__":
    main()
