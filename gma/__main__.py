"""`python -m gma` is the `gma` command."""

from gma.cli import main

main()
