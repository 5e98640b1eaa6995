"""The pages of the documentation, and what is in them: blocks of code, commands, links, headings, sentences."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "gma_kernels/README.md")),
    *sorted(ROOT.glob("gma/pretrained/*/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# not an image's, and not in code
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


class Block(NamedTuple):
    """Fenced code: its language, or nothing, and its text. `line` counts from 1."""

    language: str
    text: str
    line: int


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    text = read(page)
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in BLOCK.finditer(text)]


def prose(page: Path) -> str:
    """Without blocks of code and comments."""
    return re.sub(r"<!--.*?-->", "", BLOCK.sub("", read(page)), flags=re.DOTALL)


def commands(block: Block) -> list[list[str]]:
    """The words of every command of a shell block, also of those that `|` and `&&` join."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        command: list[str] = []
        for word in (*lexer, ";"):
            if set(word) <= set("|&;"):
                found += [command] if command else []
                command = []
            else:
                command.append(word)
    return found


def links(page: Path) -> list[str]:
    """What leads to another file or heading of the project."""
    found = LINK.findall(re.sub(r"`[^`\n]+`", "", prose(page)))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """Of the headings, as code hosts make them."""
    plain = (re.sub(r"\]\([^)]*\)|[`*\[\]]", "", heading) for heading in HEADING.findall(BLOCK.sub("", read(page))))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def sentences(page: Path, shortest: int) -> list[str]:
    """Sentences and rows of tables of so many words or more, without what only marks them."""
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*|] ?)", prose(page)):
        text = " ".join(re.sub(r"\]\([^)]*\)|[*`\[\]|]", " ", paragraph).split())
        found += [part for part in re.split(r"(?<=[.!?:;]) ", text) if len(part.split()) >= shortest]
    return found
