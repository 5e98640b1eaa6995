"""`gma download` and `gma prepare`: from a public corpus to the token files that training reads."""

from pathlib import Path
from typing import Annotated

import typer

from gma.cli import completion
from gma.cli.options import Arguments, console
from gma.terminal import say


def download(
    name: Annotated[
        str,
        typer.Argument(
            metavar="iwslt15-en-vi | wmt15-de-en | multi30k-de-en | tatoeba-de-en", autocompletion=completion.corpora
        ),
    ],
    folder: Annotated[
        Path, typer.Option(envvar="GMA_DATA", help="Put the corpus into a folder of its name in here.")
    ] = Path("data"),
) -> None:
    """Fetch a public corpus; a download that was cut off goes on where it stopped."""
    from gma.corpus.download import download

    say(console, f"corpus: {download(name, folder, console)}")


def prepare(
    arguments: Arguments = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder of the prepared corpus.", show_default="data.folder")
    ] = None,
) -> None:
    """Turn raw parallel text into the token files that training reads; the tokenizer is learned on the way."""
    from gma.config import load_arguments
    from gma.corpus.prepare import prepare
    from gma.training.start import tokenizer_to_use

    config = load_arguments(arguments or []).config
    folder = output or Path(config.data.folder)
    console.print(prepare(config.data, folder, console, tokenizer_to_use(config)).table())
    say(console, f"prepared corpus: {folder}")
