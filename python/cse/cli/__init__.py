"""The command line: the command group, what its commands share, and the commands."""

from .group import COMMANDS, cli, main

__all__ = ["COMMANDS", "cli", "main"]
