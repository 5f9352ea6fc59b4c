"""The command line: the command group, what its commands share, and the commands."""

from .errors import main
from .group import COMMANDS, cli

__all__ = ["COMMANDS", "cli", "main"]
