"""Sources that grow word by word: what the whole call gives, and memory that does not grow with them."""

import math
import os
import re
from pathlib import Path

import pytest
import torch

from gma import GaussianMultiheadAttention, SourceCache

EMBED, HEADS = 16, 4


def attention(step=0.0, **options):
    """A module whose rows advance by e^step words, more or less."""
    module = GaussianMultiheadAttention(EMBED, HEADS, batch_first=True, **options).eval()
    with torch.no_grad():
        module.in_proj_bias.normal_()
        module.aligner.step.output.weight.normal_(std=0.3)
    forward = module.aligner.step.forward
    module.aligner.step.forward = lambda query: forward(query) * math.exp(step)
    return module


def stream(cache, query, source, chunk=1, rows=1):
    """Outputs [B, T, E] of rows that wait for their words, `rows` at a time."""
    outputs = []
    for i in range(0, query.shape[1], rows):
        row = query[:, i : i + rows]
        alignment = cache.align(row)
        while cache.arrived.max() < min(alignment.visible.max(), source.shape[1]):
            heard = int(cache.arrived.max())
            cache.push(source[:, heard : heard + chunk])
        if alignment.visible.max() > cache.arrived.min():
            alignment = cache.align(row, ended=True)
        outputs.append(cache.attend(row, alignment))
    return torch.cat(outputs, dim=1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(7)


@pytest.mark.parametrize("convention", ["paper", "reference"])
@pytest.mark.parametrize("positions", ["incremental", "absolute"])
@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize(("window", "key_heads"), [(None, 4), (0, 4), (5, 1), (30, 2)])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_stream_gives_what_one_call_on_the_whole_source_gives(
    rows, window, key_heads, share_heads, positions, convention
):
    module = attention(
        step=0.5,
        dtype=torch.float64,
        window=window,
        num_kv_heads=key_heads,
        share_heads=share_heads,
        positions=positions,
        convention=convention,
        delta=2.0,
    )
    query, source = torch.randn(2, 240, EMBED).double(), torch.randn(2, 300, EMBED).double()
    found = stream(SourceCache(module, 2), query, source, chunk=2, rows=rows)
    with torch.no_grad():
        expected = module(query, source, source, need_weights=False)[0]
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_words_were_forgotten_on_the_way_and_others_kept():
    module = attention(step=0.5, window=5, dtype=torch.float64)
    cache = SourceCache(module, 2)
    stream(cache, torch.randn(2, 100, EMBED).double(), torch.randn(2, 300, EMBED).double())
    assert (cache.forgotten > 50).all()
    assert (cache.arrived - cache.forgotten < 100).all()


def test_absolute_positions_may_go_back_and_forget_nothing():
    module = attention(step=4.0, window=5, positions="absolute")
    cache = SourceCache(module, 1)
    stream(cache, torch.randn(1, 200, EMBED), torch.randn(1, 300, EMBED))
    assert cache.arrived.item() > 50
    assert cache.forgotten.item() == 0


def test_sentences_of_a_batch_grow_at_their_own_pace():
    module = attention(window=4, dtype=torch.float64, delta=0.0)
    states = [torch.randn(1, 200, EMBED).double() for _ in range(3)]
    together, alone = SourceCache(module, 3), [SourceCache(module, 1) for _ in range(3)]
    query = torch.randn(3, 150, EMBED).double()
    for i in range(150):
        row = query[:, i : i + 1]
        alignment = together.align(row)
        new = (alignment.visible[:, 0, 0] - together.arrived).clamp(min=0)
        chunk = torch.randn(3, int(new.max()), EMBED).double()
        for b in range(3):
            begin = int(together.arrived[b])
            chunk[b, : new[b]] = states[b][0, begin : begin + new[b]]
            alone[b].push(states[b][:, begin : begin + new[b]])
        together.push(chunk, lengths=new)
        found = together.attend(row, alignment)
        for b in range(3):
            own = type(alignment)(*(x[b : b + 1] for x in alignment))
            torch.testing.assert_close(found[b : b + 1], alone[b].attend(row[b : b + 1], own), rtol=1e-11, atol=1e-11)
    assert together.arrived.tolist() == [int(cache.arrived) for cache in alone]
    assert (together.forgotten > 0).all()


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("batched", [True, False])
def test_layouts_are_those_of_the_module(batched, batch_first):
    module = GaussianMultiheadAttention(EMBED, HEADS, batch_first=batch_first, kdim=6, vdim=10, delta=math.inf).eval()

    def random(rows, features):
        return torch.randn(*((2, rows) if batch_first else (rows, 2)) if batched else (rows,), features)

    query, key, value = random(4, EMBED), random(7, 6), random(7, 10)
    cache = SourceCache(module, 2 if batched else 1)
    cache.push(key, value)
    found = cache.attend(query, module.align(query, cache.arrived))
    with torch.no_grad():
        torch.testing.assert_close(found, module(query, key, value)[0])


def test_under_autocast():
    module = attention(window=4)
    query, source = torch.randn(1, 40, EMBED), torch.randn(1, 60, EMBED)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        found = stream(SourceCache(module, 1), query, source)
        expected = module(query, source, source)[0]
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_nothing_keeps_a_graph():
    module = attention(window=4)
    cache = SourceCache(module, 1)
    cache.push(torch.randn(1, 9, EMBED, requires_grad=True))
    assert not cache.attend(
        torch.randn(1, 1, EMBED), module.align(torch.randn(1, 1, EMBED), cache.arrived)
    ).requires_grad


def walk(cache, words):
    """Stream words that are made when they are asked for; yields after every row."""
    while cache.arrived.item() < words:
        row = torch.randn(1, 1, EMBED)
        alignment = cache.align(row)
        missing = int(alignment.visible.max()) - cache.arrived.item()
        if missing > 0:
            cache.push(torch.randn(1, missing, EMBED))
        cache.attend(row, alignment)
        yield


@pytest.mark.parametrize("window", [0, 200])
def test_a_stream_of_5_000_words_takes_the_room_of_its_window(window):
    module = attention(step=1.0, window=window, num_kv_heads=2)
    cache, room = SourceCache(module, 1), 0
    for _ in walk(cache, 5000):
        room = max(room, cache.room)
        assert cache.arrived - cache.forgotten <= 2 * (window + 64)
    assert cache.forgotten > 4500
    assert room <= 4 * (window + 64)


def test_without_a_window_nothing_is_forgotten():
    module = attention()
    cache = SourceCache(module, 1)
    for _ in walk(cache, 500):
        pass
    assert cache.forgotten == 0
    assert cache.room >= 500


def test_room_is_given_back_after_a_burst():
    module = attention(step=2.0, window=4, delta=0.0)
    cache = SourceCache(module, 1)
    cache.push(torch.randn(1, 4000, EMBED))
    most = cache.room
    while not cache.position.item() >= 3900:
        row = torch.randn(1, 1, EMBED)
        cache.attend(row, cache.align(row, ended=True))
    assert cache.room <= most / 4


def resident_megabytes():
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells how much memory a process has")
def test_a_stream_of_100_000_words_in_flat_memory(capsys):
    module = attention(step=1.0, window=128, num_kv_heads=2, width_rule="predicted")
    cache, seen = SourceCache(module, 1), {}
    for _ in walk(cache, 100_000):
        heard = cache.arrived.item() // 10_000
        if heard not in seen:
            seen[heard] = (cache.room, resident_megabytes())
    rooms, megabytes = zip(*seen.values())
    with capsys.disabled():
        print(
            f"\n{cache.arrived.item()} words, room for {max(rooms)}; MB every 10,000:", *(f"{x:.1f}" for x in megabytes)
        )
    assert len(seen) == 11
    assert max(rooms) <= 1024
    # what 100,000 words take without forgetting: 25 MB
    assert megabytes[-1] - megabytes[1] < 2


ROW, WORDS = torch.zeros(1, 1, EMBED), torch.zeros(1, 2, EMBED)

WRONG = [
    (lambda module, cache: SourceCache(torch.nn.Linear(2, 2), 1), TypeError, "attention Linear"),
    (lambda module, cache: SourceCache(module, 0), ValueError, "batch 0 1"),
    (lambda module, cache: SourceCache(module, 2.0), ValueError, "batch 2.0"),
    (lambda module, cache: SourceCache(module, True), ValueError, "batch True"),
    (lambda module, cache: cache.push(torch.zeros(1, 2, 5)), ValueError, "key 5 features 16"),
    (lambda module, cache: cache.push(torch.zeros(3, 2, EMBED)), ValueError, "key batch size 3 1"),
    (lambda module, cache: cache.push(WORDS, torch.zeros(1, 3, EMBED)), ValueError, "value (1, 3, 16) rows key"),
    (lambda module, cache: cache.push(WORDS, torch.zeros(1, 2, 5)), ValueError, "value 5 16"),
    (lambda module, cache: cache.push([1.0]), TypeError, "key list Tensor"),
    (lambda module, cache: cache.push(WORDS, lengths=torch.tensor([3])), ValueError, "lengths 3 2"),
    (lambda module, cache: cache.push(WORDS, lengths=torch.tensor([-1])), ValueError, "lengths -1"),
    (lambda module, cache: cache.push(WORDS, lengths=torch.tensor([1.0])), TypeError, "lengths float32 integers"),
    (lambda module, cache: cache.push(WORDS, lengths=torch.tensor([1, 1])), ValueError, "lengths (2,) [1]"),
    (lambda module, cache: cache.align(ROW, ended=torch.tensor([True, False])), ValueError, "ended (2,) [1]"),
    (lambda module, cache: cache.align(torch.zeros(1, 1, 5)), ValueError, "query 5 features 16"),
    (lambda module, cache: cache.align(torch.zeros(2, 1, EMBED)), ValueError, "query batch size 2 1"),
    (lambda module, cache: cache.attend(torch.zeros(1, 1, 5), at(module, 3)), ValueError, "query 5 features 16"),
    (lambda module, cache: cache.attend(ROW, None), TypeError, "alignment NoneType gma.Alignment"),
    (lambda module, cache: cache.attend(torch.zeros(1, 2, EMBED), at(module, 3)), ValueError, "center (1, 1, 1) 2"),
    (lambda module, cache: cache.attend(torch.zeros(2, 1, EMBED), at(module, 3)), ValueError, "query batch size 2 1"),
    (lambda module, cache: cache.attend(ROW, at(module, 10)), ValueError, "row 0 10 9 push"),
    (lambda module, cache: forgotten(module), ValueError, "row 0 forgotten order"),
]


def at(module, visible):
    row = module.align(ROW, torch.tensor([visible]))
    return row._replace(visible=torch.full((1, 1, 1), visible, dtype=torch.int32))


def forgotten(module):
    cache = SourceCache(module, 1)
    for _ in walk(cache, 300):
        pass
    cache.attend(ROW, module.align(ROW, cache.arrived))


@pytest.mark.parametrize(("call", "error", "words"), WRONG)
def test_wrong_calls(call, error, words):
    module = attention(window=4)
    cache = SourceCache(module, 1)
    cache.push(torch.zeros(1, 9, EMBED))
    with pytest.raises(error) as refusal:
        call(module, cache)
    for word in re.findall(r"\([^)]*\)|\[[^\]]*\]|\S+", words):
        assert word in str(refusal.value)
    # a refused call leaves the cache as it was
    assert cache.arrived.tolist() == [9]
    cache.attend(ROW, at(module, 9))


def test_a_module_that_drops_weights_is_refused():
    with pytest.raises(ValueError, match=r"attention is in training mode; expected attention.eval\(\)"):
        SourceCache(GaussianMultiheadAttention(EMBED, HEADS, dropout=0.1), 1)
