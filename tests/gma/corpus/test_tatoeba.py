"""Tatoeba: no English sentence in two splits, no German one seen in training, and whatever is wrong is named."""

import zipfile

import pytest
from rich.console import Console

from gma.corpus import tatoeba
from gma.corpus.download import Corpus, download
from gma.errors import UserError

PAIRS = [(f"Satz {i // 2} auf Deutsch{'.' * (i % 3)}", f"Sentence {i // 3}.") for i in range(3000)]


def write_archive(folder, text: str | bytes, member: str = tatoeba.MEMBER) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / tatoeba.ARCHIVE, "w") as file:
        file.writestr(member, text)


def test_splits_share_no_sentence():
    splits = tatoeba.split_pairs(PAIRS)
    english = {split: {pair[1] for pair in pairs} for split, pairs in splits.items()}
    assert not english["train"] & (english["valid"] | english["test"])
    assert not english["valid"] & english["test"]
    held_out = {pair[0] for split in tatoeba.HELD_OUT for pair in splits[split]}
    assert not held_out & {pair[0] for pair in splits["train"]}
    # about one in a hundred each, and nothing lost but German sentences that were held out
    assert all(10 <= len(splits[split]) <= 60 for split in tatoeba.HELD_OUT)
    kept = {pair for pairs in splits.values() for pair in pairs}
    assert {pair[0] for pair in set(PAIRS) - kept} <= held_out


def test_more_sentences_leave_the_others_where_they_were():
    before, after = (tatoeba.split_pairs(pairs) for pairs in (PAIRS[:1500], PAIRS))
    for split in tatoeba.HELD_OUT:
        assert set(before[split]) <= set(after[split])


def test_unpacked_behind_a_download(tmp_path):
    lines = [f"{english}\t{german}\tCC-BY 2.0" for german, english in PAIRS]
    write_archive(tmp_path / "c", "\n".join([*lines, "Two  spaces.\tZwei  Leerzeichen."]))
    corpus = Corpus((), finish=tatoeba.unpack)
    folder = download("c", tmp_path, Console(quiet=True), corpora={"c": corpus})
    found = [
        pair
        for split in tatoeba.SPLITS
        for pair in zip(*((folder / f"{split}.{side}").read_text().splitlines() for side in ("de", "en")), strict=True)
    ]
    assert ("Zwei Leerzeichen.", "Two spaces.") in found
    assert set(found) - {("Zwei Leerzeichen.", "Two spaces.")} <= set(PAIRS)
    # there already: the archive is not needed any more
    (folder / tatoeba.ARCHIVE).unlink()
    tatoeba.unpack(folder)


@pytest.mark.parametrize(
    ("text", "member", "complaint"),
    [
        ("A.\tB.\nno tab", tatoeba.MEMBER, r"line 2 of deu\.txt has no tab"),
        (b"\xff\xfe", tatoeba.MEMBER, r"expected a zip file with deu\.txt"),
        ("A.\tB.", "other.txt", r"expected a zip file with deu\.txt"),
    ],
)
def test_wrong_archives_are_named(tmp_path, text, member, complaint):
    write_archive(tmp_path, text, member)
    with pytest.raises(UserError, match=complaint):
        tatoeba.unpack(tmp_path)


def test_missing_archive_is_named(tmp_path):
    with pytest.raises(UserError, match=r"deu-eng\.zip: expected a zip file"):
        tatoeba.unpack(tmp_path)


def test_only_a_line_feed_ends_a_line(tmp_path):
    write_archive(tmp_path, "One\u2028two.\tEins\u0085zwei.\r\nThree.\tDrei.\n")
    tatoeba.unpack(tmp_path)
    splits = [(tmp_path / f"{split}.de").read_text("utf-8") for split in tatoeba.SPLITS]
    assert sorted("".join(splits).split("\n")) == ["", "Drei.", "Eins zwei."]
