"""What the shell may write in the place of a recipe, a corpus or a model; `gma --install-completion` tells it to ask.

Nothing here waits for torch, and nothing raises: whoever asks has typed half a word.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import gma

MODEL = "config.toml", "model.safetensors"
CURVE = "curve.json"
# of folders below the one that has been typed
DEPTH = 2


def models(incomplete: str) -> list[str]:
    """Models of the package by name, and folders that hold one; behind a comma, too."""
    before, comma, last = incomplete.rpartition(",")
    shipped = {path.parent.name for path in (Path(gma.__file__).parent / "pretrained").glob(f"*/{MODEL[0]}")}
    found = {name for name in shipped if name.startswith(last)}
    found |= {str(folder) for folder in _below(last) if _holds(folder, *MODEL)}
    return sorted(before + comma + name for name in found)


def runs(incomplete: str) -> list[str]:
    """Folders of training runs."""
    return sorted(str(folder) for folder in _below(incomplete) if _holds(folder, "checkpoints"))


def curves(incomplete: str) -> list[str]:
    """What `gma sweep` has written."""
    return sorted(str(folder / CURVE) for folder in _below(incomplete) if _holds(folder, CURVE))


def settings(incomplete: str) -> list[str]:
    """Recipes, TOML files and, once its section has been typed, keys."""
    from gma.config import Config, recipes

    found = {name for name in recipes() if name.startswith(incomplete)}
    for folder in _below(incomplete):
        with contextlib.suppress(OSError):
            found |= {str(path) for path in folder.glob("*.toml") if str(path).startswith(incomplete)}
    section, dot, _ = incomplete.partition(".")
    if dot and section in Config.model_fields:
        keys = getattr(Config(), section).model_fields
        found |= {f"{section}.{key}=" for key in keys if f"{section}.{key}".startswith(incomplete)}
    return sorted(found)


def corpora(incomplete: str) -> list[str]:
    """What `gma download` knows."""
    from gma.corpus.download import CORPORA

    return sorted(name for name in CORPORA if name.startswith(incomplete))


def _holds(folder: Path, *names: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return all((folder / name).exists() for name in names)
    return False


def _below(incomplete: str) -> Iterator[Path]:
    """The folder in which somebody is typing, and those below it that begin as has been typed."""
    place = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    todo = [(place, 0)]
    while todo:
        folder, depth = todo.pop()
        yield folder
        with contextlib.suppress(OSError, ValueError):
            for path in sorted(folder.iterdir()) if depth < DEPTH else ():
                if path.is_dir() and not path.name.startswith(".") and str(path).startswith(incomplete.rstrip("/")):
                    todo.append((path, depth + 1))
