"""The site: its pages lie where links and navigation look for them, and it works with no network."""

import importlib
import os
import subprocess
from pathlib import Path

import pytest

import gma
import gma.client
import gma.policies
import gma_kernels
from tests.support.browser import chromium
from tests.support.pages import LINK, ROOT

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

PAGES = ("start", "policies", "gpu-report", "commands", "api/streaming", "index")
SITE = ROOT / "build" / "docs" / "site"


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs" / "site")
        importlib.import_module("make_site").lay_out(folder)
    return folder


def navigation(entries: list) -> list[str]:
    """The pages, in order."""
    places = []
    for entry in entries:
        (value,) = entry.values() if isinstance(entry, dict) else (entry,)
        places += [value] if isinstance(value, str) else navigation(value)
    return places


def test_the_navigation_names_every_page(laid_out):
    with open(laid_out / "zensical.toml", "rb") as file:
        places = navigation(tomllib.load(file)["project"]["nav"])
    assert len(places) == len(set(places))
    there = {path.relative_to(laid_out / "pages").as_posix() for path in (laid_out / "pages").rglob("*.md")}
    assert set(places) == {place for place in there if not place.startswith("source/")}


def test_no_link_leaves_the_site(laid_out):
    pages = list((laid_out / "pages").rglob("*.md"))
    links = [(page, link.split("#")[0]) for page in pages for link in LINK.findall(page.read_text("utf-8"))]
    relative = [(page, link) for page, link in links if link.endswith((".md", ".png", ".gif"))]
    assert len(relative) > 100
    for page, link in relative:
        target = os.path.normpath(page.parent / link)
        assert Path(target).is_file() or "source" in page.parts, (page, link)
        assert target.startswith(str(laid_out)) or "source" in page.parts, (page, link)


def test_the_commands_are_all_there(laid_out):
    text = (laid_out / "pages" / "commands.md").read_text("utf-8")
    for name in ("gma serve-load", "gma plot attention", "| `--delta`, `--k`, `--threshold` |", "| required |"):
        assert name in text


@pytest.mark.parametrize("package", [gma, gma_kernels, gma.client, gma.policies], ids=lambda package: package.__name__)
def test_every_public_name_is_in_the_reference(laid_out, package):
    """In a module that a page of the reference names."""
    text = "".join(path.read_text("utf-8") for path in (laid_out / "pages" / "api").glob("*.md"))
    for name in package.__all__:
        home = getattr(getattr(package, name), "__module__", None)
        assert home is None or f"::: {home}\n" in text or f"::: {home}.{name}\n" in text, f"{home}.{name}"


@pytest.mark.slow
def test_it_works_from_files_with_no_network():
    """Built without a warning; no page asks another host for anything, and the search finds a word."""
    subprocess.run(["make", "docs"], cwd=ROOT, check=True)
    foreign = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.on("request", lambda request: foreign.append(request.url))
        for name in PAGES:
            page.goto(f"{SITE.as_uri()}/{name}.html")
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than a phone"
        page.keyboard.press("Control+k")
        page.locator("input[placeholder=Search]").press_sequentially("staircase", delay=20)
        page.get_by_text("The page", exact=False).last.wait_for()
    assert not [url for url in foreign if not url.startswith(("file:", "data:", "blob:"))]
