"""A notebook as a page: its text, its code, and what the code gave."""

import base64
import json
from collections.abc import Callable
from pathlib import Path


def write_notebook(read: Path, write: Path, turn: Callable[[str], str]) -> None:
    """The page, and its pictures beside it. turn: the links of a text to where their targets are on the site."""
    parts: list[str] = []
    pictures = 0
    for cell in json.loads(read.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(turn(text) if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif picture := output.get("data", {}).get("image/png"):
                pictures += 1
                name = f"{read.stem}-{pictures}.png"
                write.with_name(name).write_bytes(base64.b64decode(picture))
                parts.append(f"![What this draws]({name})")
    parts.insert(1, f"*[This page as a notebook]({read.name})*")
    write.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
