"""Makes ``python -m cse`` equivalent to the command ``cse``."""

from .cli import main

if __name__ == "__main__":
    main()
