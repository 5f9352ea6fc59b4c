"""The command line: ``group`` holds the commands, ``exit_codes`` reports errors and ends the program."""

from .exit_codes import main
from .group import COMMANDS, cli

__all__ = ["COMMANDS", "cli", "main"]
