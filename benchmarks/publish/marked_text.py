"""The parts of a page that a command writes, between two comments that name them."""

import re
from pathlib import Path


def replace_marked(path: Path, name: str, command: str, text: str) -> None:
    """Put `text` between `<!-- name: written by command -->` and `<!-- /name -->`."""
    begin, end = f"<!-- {name}: written by {command} -->\n", f"<!-- /{name} -->\n"
    found = path.read_text(encoding="utf-8")
    pattern = re.compile(f"(?<={re.escape(begin)}).*?(?={re.escape(end)})", re.DOTALL)
    if not pattern.search(found):
        raise SystemExit(f"{path}: expected the marks {begin.strip()} and {end.strip()}")
    path.write_text(pattern.sub(lambda _: text, found), encoding="utf-8")
