"""The config of a run: a recipe or a TOML file, overrides on top of it, and where every value came from."""

import difflib
import os
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from importlib.abc import Traversable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard, get_args, get_origin

from pydantic import ValidationError

from gma.config.settings import (
    POLICY_KEYS,
    TOKENIZERS,
    AttentionSettings,
    Config,
    Expected,
    Impossible,
    Settings,
)
from gma.config.toml import toml_value
from gma.errors import UserError
from gma.storage import foreign

DEFAULT_RECIPE = "generated"
DATA_VARIABLE = "GMA_DATA"
COMMAND_LINE = "command line"
# keys that a choice on the command line resets: `model.preset=base` means base, whatever the file says
GOVERNED = {
    "model.preset": ("width", "feed_forward", "heads", "encoder_layers", "decoder_layers"),
    "data.tokenizer": (*TOKENIZERS["bpe"], "source_vocabulary", "target_vocabulary"),
}


class ConfigError(UserError, ValueError):
    """Says which key is wrong, what came and from where, what was expected, and what to do."""


class Resolved(NamedTuple):
    """A valid config and the origin of each of its values, by dotted key."""

    config: Config
    origins: dict[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """Dotted key, value as in TOML and origin of every setting, in the order of the sections."""
        return [(key, toml_value(value), self.origins[key]) for key, value in _leaves(self.config.values())]


def recipes() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(entry.name[:-5] for entry in _recipe_folder().iterdir() if entry.name.endswith(".toml"))


def load(source: str | os.PathLike | None = None, overrides: Sequence[str] = ()) -> Resolved:
    """Read a recipe by name or a TOML file by path, and put `section.key=value` overrides on top.

    Args:
        source: a name out of `recipes()`, a path (ends in .toml or holds a slash), or None for the recipe `generated`.
        overrides: values are written as in TOML, where text needs no quotes; the last one of a key counts.
    """
    name, text = _read(DEFAULT_RECIPE if source is None else source)
    try:
        given = foreign.parse_toml(text, name)
    except foreign.ForeignFile as error:
        raise ConfigError(str(error)) from None
    origins = {key: f"{name}:{line}" for key, line in _key_lines(text).items()}
    for override in overrides:
        _override(given, origins, override)
    data = given.setdefault("data", {})
    if os.environ.get(DATA_VARIABLE) and isinstance(data, dict) and "root" not in data:
        data["root"] = os.environ[DATA_VARIABLE]
        origins["data.root"] = f"environment variable {DATA_VARIABLE}"
    try:
        config = Config.model_validate(given)
    except ValidationError as error:
        raise ConfigError("\n".join(_messages(error, given, origins))) from None
    return Resolved(config, {key: _origin(key, given, origins, config) for key, _ in _leaves(config.values())})


def load_arguments(arguments: Sequence[str]) -> Resolved:
    """`load` for a command's arguments: an optional recipe or file, then overrides."""
    # a path may hold an equals sign, too; a key holds no slash
    if arguments and ("=" not in arguments[0] or os.sep in arguments[0].partition("=")[0]):
        return load(arguments[0], arguments[1:])
    return load(None, arguments)


def _recipe_folder() -> Traversable:
    return resources.files("gma.config") / "recipes"


def _read(source: str | os.PathLike) -> tuple[str, str]:
    """The name to show and the text of a recipe or file."""
    name = os.fspath(source)
    if not (isinstance(source, os.PathLike) or name.endswith(".toml") or os.sep in name):
        if name not in recipes():
            raise ConfigError(
                f"there is no recipe {name!r}{_did_you_mean(name, recipes())}; expected one of {', '.join(recipes())}, "
                "or a path to a .toml file"
            )
        return f"recipe {name}", (_recipe_folder() / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return name, foreign.read_text(Path(name), foreign.LARGEST_TOML)
    except (foreign.ForeignFile, OSError) as error:
        reason = f"{name}: cannot be read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{reason}; expected a TOML file, or a recipe: {', '.join(recipes())}") from None


def _key_lines(text: str) -> dict[str, int]:
    """Dotted key -> line of its first `key =`. Only for messages: unusual ways of writing TOML may be missed."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w.\-\s]+?)\s*\]", line):
            section = re.sub(r"\s", "", header[1]) + "."
            lines.setdefault(section[:-1], number)
        elif key := re.match(r"\s*([\w.\-\s]+?)\s*=", line):
            lines.setdefault(section + re.sub(r"\s", "", key[1]), number)
    return lines


def _override(given: dict, origins: dict[str, str], override: str) -> None:
    """Put one `section.key=value` into the tables, in place."""
    key, equals, text = override.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or len(parts) < 2 or not all(re.fullmatch(r"[\w-]+", part) for part in parts):
        raise ConfigError(f"{override!r} is no override; expected section.key=value, as in training.minutes=30")
    field = _field(key)
    if _is_settings(field):
        raise ConfigError(
            f"{key} = {text} ({COMMAND_LINE}): is a section, not a value; expected one of its keys: "
            f"{', '.join(f'{key}.{name}' for name in field.model_fields)}"
        )
    table = given
    for depth, part in enumerate(parts[:-1], start=1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            section = ".".join(parts[:depth])
            raise ConfigError(_line(section, table, origins, "is a section of keys, not a value; leave it out"))
    value = _parse(text)
    for governed in _governed(key, value, table):
        # an earlier override stays: giving both on the command line is deliberate
        if origins.get(f"{parts[0]}.{governed}") != COMMAND_LINE:
            table.pop(governed, None)
            origins.pop(f"{parts[0]}.{governed}", None)
    table[parts[-1]] = value
    origins[key] = COMMAND_LINE


def _governed(key: str, value: Any, table: dict) -> Iterable[str]:
    """Keys of the same section, in `table`, that a choice on the command line resets."""
    if key == "attention.policy" and isinstance(value, str) and value in POLICY_KEYS:
        changed = value != table.get("policy", AttentionSettings.model_fields["policy"].default)
        # delta means another quantity with another policy
        kept = {"policy", *POLICY_KEYS[value]} - ({"delta"} if changed else set())
        return set(AttentionSettings.model_fields) - kept
    return GOVERNED.get(key, ())


def _parse(text: str) -> Any:
    """A TOML value, or the text itself where it is none: quotes are the shell's, too."""
    try:
        table = foreign.parse_toml(f"value = {text}", "value")
    except foreign.ForeignFile:
        return text.strip()
    return table["value"] if table.keys() == {"value"} else text.strip()


def _field(key: str) -> Any:
    """The settings class or the field at a dotted key; None if there is none."""
    model: Any = Config
    for part in key.split("."):
        if not _is_settings(model) or part not in model.model_fields:
            return None
        field = model.model_fields[part]
        model = field.annotation if _is_settings(field.annotation) else field
    return model


def _is_settings(annotation: Any) -> TypeGuard[type[Settings]]:
    return isinstance(annotation, type) and issubclass(annotation, Settings)


def _leaves(table: dict, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _origin(key: str, given: dict, origins: dict[str, str], config: Config) -> str:
    """Where a value of the valid config came from."""
    *path, last = key.split(".")
    table = given
    for part in path:
        table = table.get(part, {})
    if last in table:
        return _given_origin(key, origins)
    section = getattr(config, path[0])
    for chooser, choices in section.choosers.items():
        if last in choices[getattr(section, chooser)] and len(path) == 1:
            return f"{chooser} {getattr(section, chooser)}"
    return "default"


def _given_origin(key: str, origins: dict[str, str]) -> str:
    """Origin of a key or, if it stands in an inline table, of the nearest table around it."""
    while key and key not in origins:
        key = key.rpartition(".")[0]
    return origins.get(key, "")


def _did_you_mean(given: str, choices: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(choices), n=1, cutoff=0.6)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _line(key: str, value: Any, origins: dict[str, str], problem: str) -> str:
    origin = _given_origin(key, origins)
    return f"{key} = {toml_value(value)}{f' ({origin})' if origin else ''}: {problem}"


def _messages(error: ValidationError, given: dict, origins: dict[str, str]) -> Iterable[str]:
    """One line for each thing that is wrong."""
    problems = error.errors(include_url=False)
    wrong = {".".join(map(str, problem["loc"])) for problem in problems}
    for problem in problems:
        # an index into a list is not part of the key
        path = [part for part in problem["loc"] if isinstance(part, str) and part != "tuple[str, ...]"]
        key, cause = ".".join(path), problem.get("ctx", {}).get("error")
        if isinstance(cause, Impossible):
            yield _line(".".join([*path, cause.key]), cause.value, origins, cause.reason)
        elif problem["type"] == "extra_forbidden":
            yield _line(key, problem["input"], origins, _unknown(path))
        elif problem["type"] == "missing":
            # keys that a mistyped preset would have set are not reported on their own
            if not any(f"{path[0]}.{chooser}" in wrong for chooser in _field(path[0]).choosers):
                yield f"{key} is missing: {_expectation(key)}, as {_chooser_of(path, given)} does not set it"
        else:
            yield _line(key, _value_at(given, path), origins, _expectation(key) + _near(key, problem["input"]))


def _value_at(given: dict, path: list[str]) -> Any:
    value: Any = given
    for part in path:
        value = value[part]
    return value


def _unknown(path: list[str]) -> str:
    """Names the nearest key of the section, or the key of that name in another one, and all keys of the section."""
    section = _field(".".join(path[:-1])) if len(path) > 1 else Config
    prefix = "".join(f"{part}." for part in path[:-1])
    close = difflib.get_close_matches(path[-1], list(section.model_fields), n=1, cutoff=0.6)
    suggestion = prefix + close[0] if close else _elsewhere(path[-1])
    hint = f" (did you mean {suggestion}?)" if suggestion else ""
    return f"there is no such key{hint}; expected one of {', '.join(prefix + name for name in section.model_fields)}"


def _elsewhere(name: str) -> str | None:
    """The dotted key of another section with exactly this name."""
    return next((f"{section}.{name}" for section in Config.model_fields if name in _field(section).model_fields), None)


def _chooser_of(path: list[str], given: dict) -> str:
    section = _field(path[0])
    chooser = next(iter(section.choosers))
    value = given.get(path[0], {}).get(chooser, section.model_fields[chooser].default)
    return f"{path[0]}.{chooser} = {toml_value(value)}"


def _expectation(key: str) -> str:
    field = _field(key)
    if _is_settings(field):
        return f"expected a table with the keys {', '.join(field.model_fields)}"
    if get_origin(field.annotation) is Literal:
        return f"expected one of {', '.join(map(repr, get_args(field.annotation)))}"
    return "expected " + next(item.words for item in field.metadata if isinstance(item, Expected))


def _near(key: str, value: Any) -> str:
    field = _field(key)
    if _is_settings(field) or get_origin(field.annotation) is not Literal or not isinstance(value, str):
        return ""
    return _did_you_mean(value, get_args(field.annotation))
