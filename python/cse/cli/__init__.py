"""The command line: ``group`` has the commands, ``exit_codes`` the errors and how the program ends."""

from .exit_codes import main
from .group import COMMANDS, cli

__all__ = ["COMMANDS", "cli", "main"]
