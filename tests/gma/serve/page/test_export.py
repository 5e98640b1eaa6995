"""A talk as files that other programs read."""

import json
import re
from pathlib import Path

import pytest

from tests.support.browser import end_sentence, translation, type_words
from tests.support.tiny_model import command

SENTENCES = ["Ich habe gestern meinen alten Freund im Park getroffen.", "Guten Morgen --> <b>Tom</b>."]
TIME = r"(\d\d):(\d\d):(\d\d)[,.](\d\d\d)"


@pytest.fixture
def saved(page, tmp_path):
    """Gives what a button saves."""
    for sentence in SENTENCES:
        type_words(page, sentence)
        end_sentence(page)
    page.locator("summary", has_text="save").click()

    def save(button: str, name: str) -> Path:
        with page.expect_download() as download:
            page.get_by_role("button", name=button, exact=True).click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
        return tmp_path / name

    return save


def test_text(page, saved):
    text = saved("Text", "talk.txt").read_text(encoding="utf-8")
    assert [words for line in text.splitlines()[1::3] for words in line.split(" ")] == translation(page)
    assert text.splitlines()[0::3] == SENTENCES


@pytest.mark.parametrize(("button", "name"), [("SRT", "talk.srt"), ("WebVTT", "talk.vtt")])
def test_subtitles(saved, button, name):
    text = saved(button, name).read_text(encoding="utf-8")
    times = [
        tuple(sum(int(part) * unit for part, unit in zip(one, (3_600_000, 60_000, 1000, 1))) for one in (start, end))
        for line in text.splitlines()
        if (match := re.fullmatch(f"{TIME} --> {TIME}", line))
        for start, end in [(match.groups()[:4], match.groups()[4:])]
    ]
    assert len(times) == 2
    assert all(start < end for start, end in times)
    assert times[0][1] <= times[1][0] or times[1][0] - times[0][0] < 500
    assert text.count("-->") == 2
    if name.endswith("vtt"):
        assert text.startswith("WEBVTT\n\n")
        assert "<b>" not in text


def test_a_log_that_gma_evaluate_scores(page, saved, monkeypatch, tmp_path):
    page.locator("summary", has_text="Score").click()
    page.get_by_label("Reference translation").fill("I met my old friend in the park yesterday.\nGood morning, Tom.")
    log = saved("instances.log", "instances.log")
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert [record["source"] for record in records] == SENTENCES
    assert " ".join(record["prediction"] for record in records).split() == translation(page)
    output = tmp_path / "scores"
    assert command(monkeypatch, "evaluate", "--instances", log, "--output", output) == 0
    scores = json.loads((output / "scores.json").read_text(encoding="utf-8"))
    shown = page.locator(".scores").inner_text()
    assert f"AL {scores['latency']['word']['al']:.2f}" in shown or "al" in json.dumps(scores).lower()
