"""The demonstration behind `gma demo`: what a position prior can learn that plain attention cannot."""

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import nn

import gma
from gma import monotone_task, plotting
from gma.monotone_task import Reader

EMBED_DIM, HEADS, BATCH, LEARNING_RATE = 64, 4, 64, 3e-3
TEST_SENTENCES = 1000


def run(output: Path, updates: int, seed: int, console: Console) -> None:
    """Train a Gaussian and a plain attention layer on the same data, print both, draw the Gaussian one."""
    torch.manual_seed(seed)
    gaussian = Reader(gma.GaussianMultiheadAttention(EMBED_DIM, HEADS, batch_first=True))
    plain = Reader(nn.MultiheadAttention(EMBED_DIM, HEADS, batch_first=True))
    test = monotone_task.draw(TEST_SENTENCES, torch.Generator().manual_seed(seed + 1))
    example = monotone_task.draw(1, torch.Generator().manual_seed(seed + 2))

    table = Table(
        "layer", "training", "right answers", "mean |p − truth|", caption=f"{TEST_SENTENCES} unseen sentences"
    )
    panels = {}

    def report(name: str, reader: Reader, training: str) -> None:
        right, distance = score(reader, test)
        table.add_row(name, training, f"{right:.1%}", "–" if distance is None else f"{distance:.1f} words")

    report("Gaussian attention", gaussian, "none")
    panels["Before training"] = look(gaussian, example)
    train(gaussian, updates, seed, console, "Gaussian attention")
    train(plain, updates, seed, console, "plain attention")
    report("Gaussian attention", gaussian, f"{updates} updates")
    report("nn.MultiheadAttention", plain, f"{updates} updates")
    panels[f"After {updates} updates"] = look(gaussian, example)

    console.print(table)
    figure = plotting.before_and_after(panels, example.aligned[0])
    for path in plotting.save(figure, output / "attention"):
        console.print(f"figure: {path}")


def train(reader: Reader, updates: int, seed: int, console: Console, name: str) -> None:
    """Teach `reader` on fresh random sentences, with a progress bar."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(reader.parameters(), LEARNING_RATE)
    for _ in track(range(updates), description=f"training {name}", console=console):
        batch = monotone_task.draw(BATCH, generator)
        scores, _ = reader(batch)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch.answer.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def score(reader: Reader, batch: monotone_task.Batch) -> tuple[float, float | None]:
    """Share of right answers, and the mean distance of the aligned position from the truth if there is one."""
    scores, _ = reader(batch)
    right = (scores.argmax(dim=-1) == batch.answer).float().mean().item()
    if not isinstance(reader.attention, gma.GaussianMultiheadAttention):
        return right, None
    return right, (reader.align(batch).center[:, 0] - batch.aligned).abs().mean().item()


@torch.no_grad()
def look(reader: Reader, example: monotone_task.Batch) -> tuple[torch.Tensor, gma.Alignment]:
    """Weights [T, S] and alignment of one sentence."""
    _, weights = reader(example)
    return weights[0], reader.align(example)
