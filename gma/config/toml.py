"""TOML text of plain values; the standard library only reads it."""

import json
from typing import Any


def toml_value(value: Any) -> str:
    """One value on one line: text, truth value, number, list or inline table."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's too; JSON leaves one control character as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_key(key)} = {toml_value(item)}' for key, item in value.items())}}}"
    return str(value)  # dates and times, which only a mistaken file holds


def toml_key(key: str) -> str:
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else toml_value(key)


def toml_document(sections: dict[str, dict[str, Any]]) -> str:
    """[section] headers with their keys; tables within a section are written inline."""
    blocks = [
        "\n".join([f"[{toml_key(name)}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in table.items())])
        for name, table in sections.items()
    ]
    return "\n\n".join(blocks) + "\n"
