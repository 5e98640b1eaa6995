"""The module under torch.compile, torch.export and activation checkpointing."""

import io

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils.checkpoint import checkpoint

from gma import GaussianMultiheadAttention

EMBED, HEADS, BATCH = 16, 4, 3
OPTIONS = [
    {},
    {"convention": "reference", "share_heads": False},
    {"width_rule": "predicted", "positions": "absolute", "prior": "laplace"},
]


def attention(**options):
    return GaussianMultiheadAttention(EMBED, HEADS, batch_first=True, **options)


def inputs(rows, source):
    query, memory = torch.randn(BATCH, rows, EMBED), torch.randn(BATCH, source, EMBED)
    padding = torch.arange(source) >= torch.tensor([source, source // 2, 1])[:, None]
    return query, memory, padding


def result_and_gradients(call, module, query, memory, padding, need_weights):
    """Output, weights if needed, and the gradients of the inputs and of every parameter."""
    query, memory = query.detach().requires_grad_(), memory.detach().requires_grad_()
    results = call(query, memory, memory, key_padding_mask=padding, need_weights=need_weights)
    results = results if need_weights else results[:1]
    loss = sum(result.square().sum() for result in results)
    return *results, *torch.autograd.grad(loss, (query, memory, *module.parameters()))


def assert_compiled_equals_eager(compiled, module, lengths, need_weights=True):
    for rows, source in lengths:
        case = (*inputs(rows, source), need_weights)
        found = result_and_gradients(compiled, module, *case)
        for x, y in zip(found, result_and_gradients(module, module, *case), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield
    torch._dynamo.reset()


# longer than 8: below that inductor unrolls sums over the rows and guards on it, whatever the module
LENGTHS = [(10, 13), (12, 17), (25, 14), (11, 30)]


def test_compiled_by_inductor_it_gives_the_same_output_and_gradients_at_every_length():
    module = attention()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    assert_compiled_equals_eager(compiled, module, LENGTHS[:1], need_weights=False)
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert_compiled_equals_eager(compiled, module, LENGTHS[1:], need_weights=False)


def test_a_second_length_recompiles_once_and_further_ones_never():
    module = attention()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(module, fullgraph=True, backend=counter)
    for graphs, lengths in zip((1, 2, 2, 2), LENGTHS):
        assert_compiled_equals_eager(compiled, module, [lengths])
        assert counter.frame_count == graphs


@pytest.mark.parametrize("options", OPTIONS[1:], ids=str)
def test_every_option_compiles_to_one_graph_that_gives_the_same(options):
    module = attention(**options)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert_compiled_equals_eager(compiled, module, LENGTHS[:1])


def test_a_compiled_module_takes_masks_and_still_checks_their_values():
    module = attention()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    query, memory, padding = inputs(6, 9)
    mask = torch.arange(9) > torch.arange(6)[:, None]
    found = compiled(query, memory, memory, padding, True, mask, False)
    torch.testing.assert_close(found, module(query, memory, memory, padding, True, mask, False))
    with pytest.raises(ValueError, match=r"key_padding_mask.*prefix"):
        compiled(query, memory, memory, padding.flip(1), True, mask, False)


def test_align_compiles_and_steps():
    module = attention()
    compiled = torch.compile(module.align, fullgraph=True, backend="aot_eager")
    query, lengths = torch.randn(BATCH, 5, EMBED), torch.tensor([9, 4, 1])
    for previous in (None, torch.rand(BATCH, 1, dtype=torch.float64) * 4 + 1):
        found, expected = (align(query, lengths, previous=previous) for align in (compiled, module.align))
        torch.testing.assert_close(tuple(found), tuple(expected))


def test_compiled_dropout_follows_the_seed():
    module = attention(dropout=0.5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    query, memory, _ = inputs(6, 9)
    runs = []
    for call, seed in ((compiled, 1), (compiled, 1), (compiled, 2), (module, 1)):
        torch.manual_seed(seed)
        runs.append(call(query, memory, memory)[0])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    torch.testing.assert_close(runs[0], runs[3])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_exported_program_is_saved_loaded_and_serves_other_lengths(options):
    module = attention(**options).eval()
    query, memory, padding = inputs(6, 9)
    rows, source = torch.export.Dim("rows", min=2, max=512), torch.export.Dim("source", min=2, max=512)
    shapes = {"query": {1: rows}, "key": {1: source}, "value": {1: source}, "key_padding_mask": {1: source}}
    program = torch.export.export(module, (query, memory, memory, padding), dynamic_shapes=shapes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for lengths in ((6, 9), (4, 31)):
        query, memory, padding = inputs(*lengths)
        found = loaded(query, memory, memory, padding)
        torch.testing.assert_close(found, module(query, memory, memory, padding))


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_dropout_gives_the_same_output_and_gradients(use_reentrant):
    module = attention(dropout=0.4)
    query, memory, padding = inputs(6, 9)
    runs = []
    for call in (module, lambda *arguments: checkpoint(module, *arguments, use_reentrant=use_reentrant)):
        module.zero_grad()
        leaves = query.detach().requires_grad_(), memory.detach().requires_grad_()
        torch.manual_seed(5)
        output, weights = call(leaves[0], leaves[1], leaves[1], padding)
        (output.square().sum() + weights.square().sum()).backward()
        runs.append([output, weights, *(x.grad for x in (*leaves, *module.parameters()))])
    for x, y in zip(*runs, strict=True):
        assert torch.equal(x, y)
