"""All commands in the order of `gma --help`, and what is printed when one of them fails.

Nothing heavy is imported before a command needs it: `gma --help` must not wait for torch.
"""

import contextlib
import errno
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer

from gma.cli import (
    align,
    data,
    demo,
    demo_train,
    evaluate,
    info,
    init,
    plot,
    push,
    reproduce,
    serve,
    sweep,
    train,
    translate,
)
from gma.cli.options import output
from gma.errors import Caution, UserError

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "demo-train": demo_train.demo_train,
    "init": init.init,
    "download": data.download,
    "prepare": data.prepare,
    "align": align.align,
    "train": train.train,
    "average": train.average,
    "segment": train.segment,
    "evaluate": evaluate.evaluate,
    "sweep": sweep.sweep,
    "reproduce": reproduce.reproduce,
    "translate": translate.translate,
    "stream": translate.stream,
    "serve": serve.serve,
    "serve-load": serve.serve_load,
    "push": push.push,
    "config": info.config,
    "info": info.info,
}
PYTHON_S_FORMAT = warnings.formatwarning
# a full or broken disk; these errors name no file
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)
# the reader of the output has died, or its terminal was closed
NOBODY_LISTENS = (errno.EPIPE, errno.EIO)


def _show_version(asked: bool) -> None:
    if asked:
        print(f"gma {version('gma')}")
        raise typer.Exit()


app = typer.Typer(
    help="Simultaneous translation with Gaussian multi-head attention.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Simultaneous translation with Gaussian multi-head attention."""


for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(plot.app, name="plot")


def main() -> None:
    """Run the command of `sys.argv`."""
    warnings.formatwarning = _warning
    try:
        app()
    except SystemExit as end:
        if not end.code and output.error is not None and output.error.errno not in NOBODY_LISTENS:
            _fail(f"standard output: {output.error.strerror}")
        raise
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        _fail(message)


def _warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
    """A caution on one line, without the place in the source; any other warning as Python formats it."""
    return (
        f"warning: {message}\n" if issubclass(category, Caution) else PYTHON_S_FORMAT(message, category, *place, **more)
    )


def _fail(message: str) -> NoReturn:
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)
    sys.exit(2)


def _message(error: Exception) -> str | None:
    """What to tell the user about errors that they can fix; None for a bug, which keeps its traceback."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        # the user's path, or a full or broken disk; any other is a bug
        if error.filename is not None:
            return f"{error.filename}: {error.strerror}"
        return error.strerror if error.errno in DISK_ERRORS else None
    from gma_kernels import BackendUnavailable

    return str(error) if isinstance(error, BackendUnavailable) else None
