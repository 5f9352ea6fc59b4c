"""The command line. ``group`` defines the command group; ``exit_codes`` runs it, reports errors and exits."""

from .exit_codes import main
from .group import COMMANDS, cli

__all__ = ["COMMANDS", "cli", "main"]
