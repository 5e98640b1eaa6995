"""Reading parallel text: plain and gzipped, and everything that can be wrong with it."""

import gzip

import pytest

from gma.errors import UserError
from gma.text import lines
from gma.text.parallel_text import ParallelText


@pytest.fixture
def text(tmp_path):
    def make(source: bytes, target: bytes, on_bad_line="error", on_empty="drop", zipped=False) -> ParallelText:
        paths = []
        for name, content in (("a.de", source), ("a.en", target)):
            paths.append(tmp_path / name)
            paths[-1].write_bytes(gzip.compress(content) if zipped else content)
        return ParallelText(paths[:1], paths[1:], on_bad_line=on_bad_line, on_empty=on_empty)

    return make


def words(text: ParallelText) -> list[tuple[str, str]]:
    return [(source.strip(), target.strip()) for source, target in text.pairs()]


@pytest.mark.parametrize("zipped", [False, True])
def test_line_ends(text, zipped):
    # a byte order mark; CR LF; Unicode's own separators; no line feed at the end
    source = "\ufeffeins\r\nzwei\u2028drei\x85vier\nfünf".encode()
    pairs = words(text(source, b"one\ntwo\nfive\n", zipped=zipped))
    assert pairs == [("eins", "one"), ("zwei\u2028drei\x85vier", "two"), ("fünf", "five")]


def test_several_files_are_joined_and_mixed(tmp_path):
    for index, pack in enumerate((gzip.compress, bytes)):
        for side in ("de", "en"):
            (tmp_path / f"{index}.{side}").write_bytes(pack(f"{side}{index}\n".encode() * 2))
    files = [[tmp_path / f"{index}.{side}" for index in range(2)] for side in ("de", "en")]
    text = ParallelText(*files, on_bad_line="error", on_empty="drop")
    positions = []
    assert len(list(text.pairs(lambda *position: positions.append(position)))) == 4
    assert text.read == 4
    assert positions[-1] == (text.bytes, text.bytes)
    # a second reading starts anew
    assert [source.strip() for source, _ in text.pairs()] == ["de0", "de0", "de1", "de1"]
    assert text.read == 4
    with pytest.raises(UserError, match="as many source as target files, got 2 and 1"):
        ParallelText(files[0], files[1][:1], on_bad_line="error", on_empty="drop")


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (0, 2)])
def test_different_numbers_of_lines(text, left, right):
    with pytest.raises(UserError, match=rf"a\.de has {left} lines and .*a\.en has {right}"):
        words(text(b"x\n" * left, b"y\n" * right))


def test_not_utf8(text):
    bad = ("gut\nschön\n".encode("latin-1"), b"good\nnice\n")
    with pytest.raises(UserError, match=r"a\.de, line 2: not UTF-8 \(byte 4 of the line is 0xf6\).*on_bad_line"):
        words(text(*bad))
    with pytest.raises(UserError, match=r"a\.en, line 2"):
        words(text(*reversed(bad)))
    dropping = text(*bad, on_bad_line="drop")
    assert words(dropping) == [("gut", "good")]
    assert (dropping.read, dropping.bad) == (2, 1)


def test_endless_line_is_bad_and_never_held(text, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 10)
    long = (b"a\n" + b"x" * 95 + b"\nb\n", b"a\ny\nb\n")
    with pytest.raises(UserError, match=r"a\.de, line 2: longer than 10 bytes"):
        words(text(*long))
    assert words(text(*long, on_bad_line="drop")) == [("a", "a"), ("b", "b")]


def test_empty_sides(text):
    sides = ("a\n \t\u00a0\nc\n\n".encode(), b"a\nb\n\n\n")
    dropping = text(*sides)
    assert words(dropping) == [("a", "a")]
    assert (dropping.read, dropping.empty) == (4, 3)
    assert len(words(text(*sides, on_empty="keep"))) == 4
    with pytest.raises(UserError, match=r"a\.de, line 2: empty.*on_empty"):
        words(text(*sides, on_empty="error"))
    with pytest.raises(UserError, match=r"a\.en, line 1: empty"):
        words(text(b"a\n", b"\n", on_empty="error"))


def test_lines_ending_in_cr_alone(text):
    with pytest.raises(UserError, match=r"a\.de: its lines end in CR alone"):
        words(text(b"a\rb\rc\r", b"a\nb\nc\n"))
    # one inside a line is white space
    assert [pair[0].split() for pair in text(b"a\rb\nc\n", b"x\ny\n").pairs()] == [["a", "b"], ["c"]]


def test_missing_and_cut_files(text, tmp_path):
    good = text(b"a\n" * 5000, b"b\n" * 5000, zipped=True)
    path = tmp_path / "a.en"
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match=r"a\.en: cannot be read past line .*cut short"):
        words(good)
    path.unlink()
    with pytest.raises(UserError, match=r"a\.en: cannot be read \(No such file.*data\.root"):
        words(good)
