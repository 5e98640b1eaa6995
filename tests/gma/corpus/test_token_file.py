"""Sentences on disk: what was written is read, in either width, and damaged files are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gma.corpus.token_file import CorpusError, PreparedCorpus, Split, TokenFile, TokenFileWriter
from gma.text.vocabulary import UNK


def write(path, sentences, vocabulary_size=100, portion=3):
    with TokenFileWriter(path, vocabulary_size) as writer:
        for start in range(0, len(sentences), portion):
            writer.extend([np.array(sentence, np.int64) for sentence in sentences[start : start + portion]])
    return writer


@settings(max_examples=50, deadline=None)
@given(
    sentences=st.lists(st.lists(st.integers(0, 70_000), max_size=6), max_size=12),
    data=st.data(),
)
def test_what_was_written_is_read(tmp_path_factory, sentences, data):
    path = tmp_path_factory.mktemp("tokens") / "train.source"
    writer = write(path, sentences, 70_001)
    file = TokenFile(path)
    assert len(file) == len(sentences) == writer.sentences
    assert [file[index].tolist() for index in range(len(file))] == sentences
    assert file.lengths.tolist() == list(map(len, sentences))
    assert file.lengths.dtype == np.int32
    assert writer.tokens == sum(map(len, sentences))
    assert writer.unknown == sum(id == UNK for sentence in sentences for id in sentence)
    if sentences:
        assert file[-1].tolist() == sentences[-1]
        indices = data.draw(st.lists(st.integers(0, len(sentences) - 1)))
        ids, lengths = file.gather(np.array(indices, np.int64))
        assert ids.tolist() == [id for index in indices for id in sentences[index]]
        assert lengths.tolist() == [len(sentences[index]) for index in indices]
    with pytest.raises(IndexError, match=f"less than {len(sentences)} sentences"):
        file[len(sentences)]


@pytest.mark.parametrize(("size", "width"), [(65_536, 2), (65_537, 4)])
def test_ids_take_two_bytes_if_they_fit(tmp_path, size, width):
    write(tmp_path / "a", [[size - 1, 0]], size)
    file = TokenFile(tmp_path / "a")
    assert file[0].dtype.itemsize == width
    assert file[0].tolist() == [size - 1, 0]


def test_sentences_are_mapped_not_loaded(tmp_path):
    write(tmp_path / "a", [[1, 2, 3]])
    base = TokenFile(tmp_path / "a")[0]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        TokenFile(tmp_path / "a")[0][0] = 5


@pytest.mark.parametrize("suffix", ["tokens", "offsets"])
def test_damaged_files_are_refused(tmp_path, suffix):
    write(tmp_path / "a", [[1, 2, 3], [4]])
    path = tmp_path / f"a.{suffix}"
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:-8], whole[:5], b"", b"x" + whole[1:], whole + b"12345678"):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"gma prepare"):
            TokenFile(tmp_path / "a")
    path.unlink()
    with pytest.raises(CorpusError, match="cannot be read"):
        TokenFile(tmp_path / "a")


def test_sides_of_different_length_are_refused(tmp_path):
    write(tmp_path / "a", [[1], [2]])
    write(tmp_path / "b", [[1]])
    with pytest.raises(CorpusError, match=r"2 sentences and .* 1"):
        Split(TokenFile(tmp_path / "a"), TokenFile(tmp_path / "b"))


def test_a_folder_without_manifest_is_no_corpus(tmp_path):
    with pytest.raises(CorpusError, match=r"corpus\.json is missing"):
        PreparedCorpus.open(tmp_path)
    (tmp_path / "corpus.json").write_text('{"format": "gma-cor')
    with pytest.raises(CorpusError, match="damaged"):
        PreparedCorpus.open(tmp_path)
    (tmp_path / "corpus.json").write_text('{"format": "gma-corpus", "version": 77}')
    with pytest.raises(CorpusError, match="version 1"):
        PreparedCorpus.open(tmp_path)
