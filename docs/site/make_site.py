"""The documentation, laid out for a generator of sites: python docs/site/make_site.py build/docs

The pages of the project are plain Markdown that lie where a code host shows them, and link to each other and to source
files. Here they are copied into one folder, and every link is turned to where its target has gone. A source file that a
page links to becomes a page that shows it, so that nothing leads out of the site. The pages of the commands and of the
Python names are written from the code itself, and nothing of it is installed or run.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from commands import command_page
from notebooks import write_notebook
from reference import reference_pages

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
# pages that lie elsewhere in the project → where they are on the site
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "gma_kernels/README.md": "kernels.md",
    "gma/pretrained/de-en/README.md": "model.md",
}
NOT_PAGES = ("requirements.txt", "site/*")
# what a site that is read from files loads from another host, and ours in its place
FOREIGN_WORKER, WORKER = "https://unpkg.com/iframe-worker/shim", "file-worker.js"
LANGUAGES = {".py": "python", ".toml": "toml", ".h": "cpp", ".cpp": "cpp", ".cu": "cpp", ".sh": "sh"}
CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def main(folder: Path) -> None:
    lay_out(folder)
    generate(folder)


def lay_out(folder: Path) -> None:
    """Everything that the generator reads."""
    pages = folder / "pages"
    shutil.rmtree(folder, ignore_errors=True)
    pages.mkdir(parents=True)
    shutil.copy(HERE / "zensical.toml", folder)
    places = dict(placed())
    linked: set[str] = set()
    for source, place in places.items():
        write, read = pages / place, ROOT / source
        write.parent.mkdir(parents=True, exist_ok=True)
        turn = partial(turned, source=source, place=place, places=places, linked=linked)
        if read.suffix == ".md":
            write.write_text(turn(read.read_text(encoding="utf-8")), encoding="utf-8")
            continue
        if read.suffix == ".ipynb":
            write_notebook(read, write, turn)
            write = write.with_suffix(read.suffix)
        shutil.copy(read, write)
    generated = {source_place(path): source_page(path) for path in linked} | reference_pages() | command_page()
    for place, text in generated.items():
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        (pages / place).write_text(text, encoding="utf-8")
    for name in ("extra.css", WORKER):
        shutil.copy(HERE / name, pages)
    print(f"{len(places)} files, {len(generated)} pages written from the code, in {pages}")


def generate(folder: Path) -> None:
    """The site, or an end to it at the first warning: also at those that no strict mode knows."""
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    said = f"{done.stdout}{done.stderr}"
    if done.returncode or re.search(r"warning|griffe:", said, re.IGNORECASE):
        raise SystemExit(f"{said}\nthe site has warnings; see above")
    for path in (folder / "site").rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        ours = os.path.relpath(folder / "site" / WORKER, path.parent)
        path.write_text(text.replace(FOREIGN_WORKER, ours), encoding="utf-8")
    print(f"the site: {folder / 'site' / 'index.html'}")


def placed() -> Iterator[tuple[str, str]]:
    """Every file of the documentation and its place on the site, both from their roots."""
    for source, place in ELSEWHERE.items():
        if (ROOT / source).exists():
            yield source, place
    for path in sorted((ROOT / "docs").rglob("*")):
        inside = path.relative_to(ROOT / "docs")
        if path.is_file() and not any(map(inside.match, NOT_PAGES)) and "__pycache__" not in path.parts:
            place = inside.with_suffix(".md") if path.suffix == ".ipynb" else inside
            yield path.relative_to(ROOT).as_posix(), place.as_posix()


def turned(text: str, source: str, place: str, places: dict[str, str], linked: set[str]) -> str:
    """The text with its links turned; `linked` is given the source files among them."""

    def turn(found: re.Match) -> str:
        if re.match(r"[a-z]+:", found[2]):
            return found[0]
        target = os.path.normpath(os.path.join(os.path.dirname(source), found[2]))
        if target not in places:
            linked.add(target)
        there = places.get(target) or source_place(target)
        return f"{found[1]}{os.path.relpath(there, os.path.dirname(place) or '.')}{found[3] or ''}{found[4]}"

    text = outside_code(text, lambda part: LINK.sub(turn, re.sub(r"<!--.*?-->\n?", "", part, flags=re.DOTALL)))
    # links that are defined below the text lead to other hosts only
    return text


def outside_code(text: str, change: Callable[[str], str]) -> str:
    kept = CODE.findall(text)
    parts = [change(part) for part in CODE.split(text)]
    return "".join(part + code for part, code in zip(parts, [*kept, ""]))


def source_place(path: str) -> str:
    return f"source/{path}.md"


def source_page(path: str) -> str:
    """A page that shows a file, or names the files of a folder."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(inside.name for inside in full.iterdir() if not inside.name.startswith(("_", ".")))
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    language = LANGUAGES.get(full.suffix, "text")
    return f"# {path}\n\n````{language}\n{full.read_text(encoding='utf-8').rstrip()}\n````\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
