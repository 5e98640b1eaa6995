"""`gma align`: word links between two files, by a statistical aligner."""

from pathlib import Path
from typing import Annotated

import typer

from gma.cli.options import console
from gma.errors import UserError
from gma.terminal import say


def align(
    source: Annotated[Path, typer.Argument(help="Text, one sentence a line.")],
    target: Annotated[Path, typer.Argument(help="Its translation.")],
    *,
    output: Annotated[Path, typer.Option(help="The links: `i-j` for every pair, source word first, from 0.")],
    with_source: Annotated[
        list[Path] | None, typer.Option(help="More text to learn from; may be given several times.")
    ] = None,
    with_target: Annotated[list[Path] | None, typer.Option(help="Its translation.")] = None,
) -> None:
    """Link the words of two files, for `gma evaluate --alignments` where there are no links made by hand."""
    from gma.corpus.align import align

    sources, targets = with_source or [], with_target or []
    if len(sources) != len(targets):
        raise UserError(f"expected --with-target as often as --with-source, got {len(targets)} and {len(sources)}")
    links = align(source, target, output, console, more=list(zip(sources, targets)))
    say(console, f"{links:,} links: {output}")
