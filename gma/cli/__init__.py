"""The `gma` command: one file for each family of commands, `app` on top."""

from gma.cli.app import main

__all__ = ["main"]
