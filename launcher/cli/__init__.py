"""The `slipstream` command: its subcommands and their options. `main` is its entry point."""

from launcher.cli.app import main

__all__ = ["main"]
