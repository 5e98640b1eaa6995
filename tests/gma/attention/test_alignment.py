"""Where rows look: the golden examples, running sums in every precision, stepping, widths and what is visible."""

import math

import pytest
import torch
from torch import nn

from gma import GaussianMultiheadAttention

EMBED, HEADS, BATCH, ROWS, SOURCE = 16, 4, 3, 12, 9
CONVENTIONS = ("paper", "reference")
WIDTH_RULES = ("whole", "half", "third", "predicted")

# single head, S = 6, δ = 1, logits of every row ln[1..6]; 1-based centers (notes/reference-implementation.md)
GOLDEN_STEPS = [0.7, 1.25, 0.5, 6.3]
GOLDEN = {
    "reference": {
        "center": [1.9, 2.25, 2.75, 9.05],
        "width": [0.45, 0.625, 0.875, 4.025],
        "visible": [2, 3, 3, 6],
        "weights": [
            [0.064861, 0.935139, 0, 0, 0, 0],
            [0.039321, 0.536411, 0.424268, 0, 0, 0],
            [0.030755, 0.314769, 0.654476, 0, 0, 0],
            [0.012447, 0.039671, 0.089157, 0.167446, 0.277178, 0.414100],
        ],
    },
    "paper": {
        "center": [1.7, 2.95, 3.45, 9.75],
        "width": [0.85, 1.475, 1.725, 4.875],
        "visible": [2, 3, 4, 6],
        "weights": [
            [0.274888, 0.725112, 0, 0, 0, 0],
            [0.082787, 0.322432, 0.594781, 0, 0, 0],
            [0.043056, 0.165833, 0.342307, 0.448804, 0, 0],
            [0.017392, 0.049220, 0.100165, 0.173727, 0.270842, 0.388654],
        ],
    },
}


def attention(**options):
    return GaussianMultiheadAttention(EMBED, HEADS, batch_first=True, **options)


def predict(module, steps):
    """Make the module predict these Δp, [B, 1 or H, T]; a call for fewer rows takes them in turn."""
    taken = 0

    def forward(scaled_query):
        nonlocal taken
        rows = scaled_query.shape[1]
        taken += rows
        return steps[..., taken - rows : taken]

    module.aligner.step.forward = forward
    return module


def align_steps(steps, source=SOURCE, previous=None, **options):
    """The alignment of the given Δp (a list, or [B, 1, T])."""
    steps = torch.as_tensor(steps, dtype=torch.float64)
    steps = steps if steps.dim() == 3 else steps.view(1, 1, -1)
    module = predict(attention(dtype=torch.float64, **options), steps)
    query = torch.zeros(steps.shape[0], steps.shape[2], EMBED, dtype=torch.float64)
    return module.align(query, torch.full(steps.shape[:1], source), previous=previous)


def lengths(source=SOURCE):
    return torch.full((BATCH,), source)


def assert_same(found, expected, tolerance):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_golden_example(convention, dtype):
    module = GaussianMultiheadAttention(2, 1, bias=False, batch_first=True, convention=convention, dtype=dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(2).repeat(3, 1))
    predict(module, torch.tensor(GOLDEN_STEPS * 2, dtype=dtype).view(1, 1, 8))
    query = torch.tensor([[math.sqrt(2), 0.0]], dtype=dtype).expand(1, 4, 2)
    key = torch.stack([torch.arange(1, 7, dtype=dtype).log(), torch.zeros(6, dtype=dtype)], -1)[None]
    _, weights = module(query, key, key)
    alignment = module.align(query, torch.tensor([6]))
    golden = GOLDEN[convention]
    assert alignment.visible.flatten().tolist() == golden["visible"]
    assert_same(weights[0], torch.tensor(golden["weights"], dtype=dtype), 1e-6)
    for field in ("center", "width"):
        assert_same(getattr(alignment, field).flatten(), torch.tensor(golden[field], dtype=dtype), 1e-6)


def test_whole_numbers_are_counted_by_floor_in_the_paper_and_by_ceil_in_the_reference():
    assert align_steps([1.0, 1.0, 0.5]).visible.flatten().tolist() == [3, 4, 4]
    # 0-based positions .9, 1, 1.5, 2.5
    assert align_steps([1.0, 1.0, 0.5, 1.0], convention="reference").visible.flatten().tolist() == [2, 2, 3, 4]


def test_the_reference_clamps_its_positions_and_not_the_running_sum():
    alignment = align_steps([5.0, 0.1, 0.2, 2000.0, 1.0], convention="reference")
    assert_same(alignment.center.flatten(), torch.tensor([1.9, 1.9, 1.9, 1101.0, 1101.0]).double(), 1e-6)
    assert_same(alignment.position.flatten(), torch.tensor([1.0, 1.1, 1.3, 2001.3, 2002.3]).double(), 1e-6)


@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("width_rule", WIDTH_RULES)
@pytest.mark.parametrize("positions", ["incremental", "absolute"])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_shapes_dtypes_and_ranges(convention, positions, width_rule, share_heads):
    module = attention(convention=convention, positions=positions, width_rule=width_rule, share_heads=share_heads)
    alignment = module.align(torch.randn(BATCH, ROWS, EMBED), torch.tensor([SOURCE, 0, 4]))
    dtypes = {"center": torch.float32, "width": torch.float32, "visible": torch.int32, "position": torch.float64}
    for field, dtype in dtypes.items():
        values = getattr(alignment, field)
        assert values.dtype == dtype, field
        assert values.shape == (BATCH, 1 if share_heads else HEADS, ROWS), field
    assert (alignment.center > 1).all()
    assert (alignment.width > 0).all()
    assert (alignment.visible >= 0).all()
    assert (alignment.visible.amax((1, 2)) <= torch.tensor([SOURCE, 0, 4])).all()


@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_positions_and_what_is_visible_never_go_back(convention, share_heads):
    module = attention(convention=convention, share_heads=share_heads)
    nn.init.normal_(module.aligner.step.output.weight, std=2.0)
    alignment = module.align(torch.randn(BATCH, 200, EMBED), lengths(100))
    assert (alignment.position.diff() >= 0).all()
    assert (alignment.center.diff() >= 0).all()
    assert (alignment.visible.diff() >= 0).all()
    if not share_heads:
        assert not torch.equal(alignment.center[:, 0], alignment.center[:, 1])


def test_absolute_positions_do_not_add_up_and_ignore_the_source_length():
    steps = [3.0, 0.5, 7.0, 0.25]
    alignment = align_steps(steps, positions="absolute")
    assert_same(alignment.center.flatten(), 1 + torch.tensor(steps).double(), 1e-12)
    assert alignment.visible.flatten().tolist() == [5, 2, 9, 2]
    assert torch.equal(align_steps(steps, source=3, positions="absolute").center, alignment.center)


@pytest.mark.parametrize(("width_rule", "divisor"), [("whole", 1), ("half", 2), ("third", 3)])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_width_rules_divide_the_position(convention, width_rule, divisor):
    alignment = align_steps(torch.rand(BATCH, 1, ROWS) * 3, convention=convention, width_rule=width_rule)
    origin = 1 if convention == "reference" else 0
    assert_same(alignment.width, (alignment.center - origin) / divisor, 1e-12)


@pytest.mark.parametrize(("exponent", "width"), [(-20.0, 0.1), (0.5, math.exp(0.5)), (20.0, 1e4)])
def test_a_predicted_width_is_clamped(exponent, width):
    module = attention(width_rule="predicted")
    query = saturating(module, module.aligner.width, exponent)
    assert_same(module.align(query, lengths()).width, torch.full((BATCH, 1, ROWS), width), 1e-6)


def saturating(module, predictor, exponent):
    """Queries for which the predictor gives exp(exponent) exactly: every tanh is 1."""
    with torch.no_grad():
        module.in_proj_weight[:EMBED].copy_(torch.eye(EMBED))
        module.in_proj_bias.zero_()
        predictor.hidden.weight.copy_(100 * torch.eye(EMBED))
        predictor.output.weight.fill_(exponent / EMBED)
    return torch.ones(BATCH, ROWS, EMBED, dtype=module.in_proj_weight.dtype)


@pytest.mark.parametrize("sign", [-1, 1])
def test_exponents_are_limited_to_15(sign):
    module = attention(dtype=torch.float64)
    query = saturating(module, module.aligner.step, sign * 100.0)
    step = module.align(query, lengths()).position.diff()
    assert_same(step, torch.full_like(step, math.exp(sign * 15)), 1e-9)


@pytest.mark.parametrize("positions", ["incremental", "absolute"])
@pytest.mark.parametrize("share_heads", [True, False])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_stepping_row_by_row_gives_the_whole_pass_in_float64(convention, share_heads, positions):
    module = attention(dtype=torch.float64, convention=convention, share_heads=share_heads, positions=positions)
    nn.init.normal_(module.aligner.step.output.weight, std=0.5)
    query, memory = torch.randn(BATCH, ROWS, EMBED).double(), torch.randn(BATCH, SOURCE, EMBED).double()
    whole, (output, weights) = module.align(query, lengths()), module(query, memory, memory)
    previous = None
    for i in range(ROWS):
        row = module.align(query[:, i : i + 1], lengths(), previous=previous)
        previous = row.position[..., -1]
        assert torch.equal(row.visible[..., 0], whole.visible[..., i])
        for field in ("center", "width", "position"):
            assert_same(getattr(row, field)[..., 0], getattr(whole, field)[..., i], 1e-12)
        found = module(query[:, i : i + 1], memory, memory, alignment=row)
        assert_same(found, (output[:, i : i + 1], weights[:, i : i + 1]), 1e-12)


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("convention", CONVENTIONS)
def test_stepping_in_float32_adds_up_to_identical_bits(convention, chunk):
    rows = 210
    steps = torch.exp(torch.randn(BATCH, HEADS, rows))
    query = torch.zeros(BATCH, rows, EMBED)
    options = {"convention": convention, "share_heads": False}
    whole = predict(attention(**options), steps).align(query, lengths(150))
    module, previous = predict(attention(**options), steps), None
    for start in range(0, rows, chunk):
        part = module.align(query[:, start : start + chunk], lengths(150), previous=previous)
        previous = part.position[..., -1]
        for field in ("visible", "center", "width"):
            assert torch.equal(getattr(part, field), getattr(whole, field)[..., start : start + chunk]), field


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("steps", [[1e300] * 3, [3e9, 1.0, 1.0], [2.0**31 - 2, 1.0, 1.0]])
def test_nothing_is_visible_beyond_the_source_however_far_the_position(convention, steps):
    steps = [1.0, *steps]
    assert align_steps(steps, convention=convention).visible.flatten().tolist()[1:] == [SOURCE] * 3


def test_negative_lengths_are_refused():
    with pytest.raises(ValueError, match=r"source_lengths has -\d+; expected lengths, 0 or more"):
        attention().align(torch.randn(BATCH, ROWS, EMBED), -lengths())


def test_a_latency_of_less_than_everything_is_refused():
    with pytest.raises(ValueError, match="delta is -inf; expected a number of source words, or inf for all"):
        attention(delta=-math.inf)


def test_a_position_that_is_not_a_number_is_reported_as_such():
    query = torch.full((BATCH, ROWS, EMBED), math.nan)
    module = attention()
    visible = module.align(query, lengths()).visible
    assert ((visible >= 0) & (visible <= SOURCE)).all()
    with pytest.raises(ValueError, match=r"center.*nan"):
        module(query, torch.randn(BATCH, SOURCE, EMBED), torch.randn(BATCH, SOURCE, EMBED))


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize(
    ("delta", "visible"),
    [(math.inf, [9] * 4), (1e300, [9] * 4), (-2, [0, 1, 2, 9]), (-1e300, [0] * 4)],
)
def test_extreme_and_negative_delta(delta, visible, convention):
    # 1-based positions 1.9 (reference) or 1.5 (paper), 3.5, 4.5, 20.5
    steps = [0.5, 2.0, 1.0, 16.0] if convention == "paper" else [9.0, 2.5, 1.0, 16.0]
    assert align_steps(steps, delta=delta, convention=convention).visible.flatten().tolist() == visible


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_sixty_steps_of_1_03_add_up_under_autocast(convention):
    module = attention(convention=convention)
    query = saturating(module, module.aligner.step, math.log(1.03))[:, :1].expand(BATCH, 60, EMBED)
    memory = torch.randn(BATCH, 80, EMBED)
    with torch.autocast("cpu", torch.bfloat16):
        alignment = module.align(query, lengths(80))
        output, _ = module(query, memory, memory)
    assert alignment.center.dtype == alignment.width.dtype == torch.float32
    expected = 1 + 61.8 if convention == "paper" else 1 + 61.8 - 1.03
    assert alignment.center[..., -1].flatten().tolist() == pytest.approx([expected] * BATCH, abs=1e-4)
    assert output.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_modules_keep_positions_in_float32(dtype):
    module = attention(width_rule="predicted").to(dtype)
    query, memory = torch.randn(BATCH, ROWS, EMBED, dtype=dtype), torch.randn(BATCH, SOURCE, EMBED, dtype=dtype)
    output, weights = module(query, memory, memory)
    assert output.dtype == weights.dtype == dtype
    alignment = module.align(query, lengths())
    assert (alignment.center.dtype, alignment.width.dtype) == (torch.float32, torch.float32)
    wide = attention(width_rule="predicted").double()
    wide.load_state_dict(module.state_dict())
    assert_same(output.double(), wide(query.double(), memory.double(), memory.double())[0], 0.05)
    output.sum().backward()
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in module.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("width_rule", ["half", "predicted"])
@pytest.mark.parametrize("positions", ["incremental", "absolute"])
@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("weight", [-3e4, 3.0, 3e4])
def test_steps_of_extreme_size_give_finite_gradients(weight, convention, positions, width_rule, dtype):
    module = attention(width_rule=width_rule, positions=positions, convention=convention, dtype=dtype)
    with torch.no_grad():
        for parameter in module.aligner.parameters():
            parameter.fill_(weight)
    query = torch.randn(BATCH, ROWS, EMBED, dtype=dtype, requires_grad=True)
    memory = torch.randn(BATCH, SOURCE, EMBED, dtype=dtype, requires_grad=True)
    output, weights = module(query, memory, memory)
    assert output.isfinite().all()
    (output.sum() + weights.square().sum()).backward()
    assert all(x.grad.isfinite().all() for x in (query, memory, *module.parameters()))


def test_first_steps_of_a_new_module_are_about_one_word():
    module = GaussianMultiheadAttention(512, 8, batch_first=True)
    position = module.align(torch.randn(4, 100, 512), torch.full((4,), 100)).position
    step = position.diff(prepend=torch.ones(4, 1, 1))
    assert step.mean().item() == pytest.approx(1.0, abs=0.1)
    assert 0.01 < step.std().item() < 0.15


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("delta", 2.5),
        ("prior", "laplace"),
        ("width_rule", "third"),
        ("positions", "absolute"),
        ("convention", "reference"),
        ("backend", "reference"),
        ("share_heads", False),
    ],
)
def test_every_option_can_be_read_back(option, value):
    module = attention(**{option: value})
    assert getattr(module, option, None) == value or f"{option}={value!r}" in repr(module)
