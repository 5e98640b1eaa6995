"""Files that an evaluation is given: logs of other systems, and gold links."""

from pathlib import Path

from gma.errors import UserError
from gma.evaluation.instances import Instance, read_instances
from gma.metrics import GoldLinks, read_links


def load_log(path: Path) -> tuple[Instance, ...]:
    """The instances of a log; UserError if it cannot be used."""
    try:
        return tuple(read_instances(path))
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read ({error.strerror}); expected an instances.log, as `gma evaluate --output` writes"
        ) from error


def load_gold(path: Path, *, one_based: bool = False) -> list[GoldLinks]:
    """A pharaoh or talp file; UserError if it cannot be used."""
    try:
        return read_links(path, one_based=one_based)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); expected a file of word links") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 ({error.reason}); expected a file of word links") from error
    except ValueError as error:
        raise UserError(str(error)) from error
