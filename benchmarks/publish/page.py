"""The page of `gma serve` as pictures: an animation of a sentence as it is typed, and two latencies on one voice.

python -m benchmarks.publish.page     writes docs/page.gif and docs/page.png, from a real run; needs Chromium
"""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from gma.cli.demo import SENTENCES

DOCS = Path(__file__).parents[2] / "docs"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WIDTH, HEIGHT = 1080, 745
# milliseconds that frames stand: a word half typed, a word heard, the end of a sentence, a word pointed at
TYPED, HEARD, ENDED, POINTED = 160, 340, 1800, 1500
COLORS = 256
LARGEST = 600_000


def main() -> None:
    with served() as url, sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, BROWSERS)), None)
        if path is None:
            sys.exit(f"no browser: none of {', '.join(BROWSERS)} is on the path")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce")
        page.goto(url)
        animation(page, DOCS / "page.gif")
        page.set_viewport_size({"width": 1200, "height": 800})
        comparison(page, DOCS / "page.png")
        browser.close()


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of a server of the package's model."""
    command = [sys.executable, "-m", "gma", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            yield next(match[0] for line in lines if (match := re.search(r"http://[\d.:]+", line)))
        finally:
            server.terminate()


def animation(page: Page, path: Path) -> None:
    """Two sentences, typed; the attention of the first; what one of its words waited for."""
    frames: list[tuple[Image.Image, int]] = []

    def take(milliseconds: int) -> None:
        frames.append((Image.open(io.BytesIO(page.screenshot())).convert("RGB"), milliseconds))

    settle(page)
    take(HEARD)
    for sentence in SENTENCES[1:3]:
        for word in sentence.split():
            page.locator("#typed").press_sequentially(word)
            take(TYPED)
            page.locator("#typed").press_sequentially(" ")
            settle(page)
            take(HEARD)
        page.locator("#typed").press("Enter")
        settle(page)
        take(ENDED)
    for word in ("will", "come"):
        page.get_by_role("button", name=word, exact=True).first.hover()
        settle(page)
        take(POINTED)
    images, durations = zip(*frames)
    first, *others = with_palette(images)
    first.save(path, save_all=True, append_images=others, duration=list(durations), loop=0, optimize=True)
    report(path)


def comparison(page: Page, path: Path) -> None:
    """One voice at two latencies, in the middle of a sentence."""
    page.get_by_role("button", name="New talk").click()
    settle(page)
    page.get_by_role("slider").fill("1")
    page.get_by_role("button", name="Compare two latencies").click()
    settle(page)
    for word in f"{SENTENCES[1]} {SENTENCES[0].rsplit(' ', 2)[0]}".split():
        page.locator("#typed").press_sequentially(f"{word} ")
        settle(page)
    page.mouse.move(0, 0)
    image = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    bottom = page.locator(".legend").bounding_box()
    assert bottom is not None
    image = image.crop((0, 0, image.width, int(bottom["y"] + bottom["height"]) + 12))
    with_palette([image])[0].save(path, optimize=True)
    report(path)


def with_palette(images: Sequence[Image.Image]) -> list[Image.Image]:
    """The same in 256 colors: the most frequent ones, exactly as they are, and those furthest from them."""
    pixels = [np.asarray(image, dtype=np.int32) @ (1 << 16, 1 << 8, 1) for image in images]
    colors, places, counts = np.unique(np.concatenate(pixels, axis=None), return_inverse=True, return_counts=True)
    parts = np.stack([colors >> 16, colors >> 8 & 255, colors & 255], axis=1)
    palette = list(np.argsort(-counts)[: COLORS // 2])
    distances = np.min([distance(parts, parts[color]) for color in palette], axis=0)
    while len(palette) < min(COLORS, len(colors)):
        palette.append(int(np.argmax(distances * np.log1p(counts))))
        distances = np.minimum(distances, distance(parts, parts[palette[-1]]))
    nearest = np.argmin([distance(parts, parts[color]) for color in palette], axis=0).astype(np.uint8)
    found = []
    for image, chosen in zip(images, np.split(nearest[places.ravel()], np.cumsum([one.size for one in pixels])[:-1])):
        found.append(Image.fromarray(chosen.reshape(image.height, image.width), "P"))
        found[-1].putpalette(parts[palette].astype(np.uint8).tobytes())
    return found


def distance(colors: np.ndarray, color: np.ndarray) -> np.ndarray:
    """[colors, 3] from one color, as a sum of squares."""
    return ((colors - color) ** 2).sum(axis=1)


def settle(page: Page) -> None:
    """Until everything said has been worked off and drawn."""
    page.evaluate(
        """async () => {
            const settled = ({ talk, transcript }) => transcript.ready && talk.behind === 0
                && transcript.spoken.every(({ ended, attention }) => !ended || attention);
            while (!gma.panes.every(settled)) await new Promise((done) => setTimeout(done, 10));
            for (let frame = 0; frame < 3; frame += 1) await new Promise(requestAnimationFrame);
        }"""
    )


def report(path: Path) -> None:
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > LARGEST:
        sys.exit(f"{path} has {size:,} bytes; expected at most {LARGEST:,}")


if __name__ == "__main__":
    main()
