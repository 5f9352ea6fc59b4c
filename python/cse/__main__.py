"""``python -m cse`` is the command ``cse``."""

from .cli import main

if __name__ == "__main__":
    main()
