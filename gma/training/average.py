"""The mean of a run's last checkpoints, as a model directory of its own."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gma import config
from gma.model import directory
from gma.model.transformer import Transformer
from gma.model.uninitialised import uninitialised
from gma.storage import tensor_file
from gma.storage.folders import MODEL, check_free_for
from gma.text.tokenizer import Tokenizer
from gma.training.checkpoint import CheckpointError, CheckpointFolder
from gma.training.trainer import CHECKPOINTS


def average(run: Path, last: int, output: Path, dtype: torch.dtype | None = None) -> list[Path]:
    """Write the mean weights of the last `last` checkpoints of `run` to `output`; returns the checkpoints used.

    dtype: of the weights on disk; None for what they were trained in.
    """
    paths = CheckpointFolder(run / CHECKPOINTS, keep=last).paths()[-last:]
    if len(paths) < last:
        raise CheckpointError(
            f"{run / CHECKPOINTS} holds {len(paths)} checkpoints; expected {last}: lower --last, or train longer with "
            "training.keep_checkpoints at least that"
        )
    check_free_for([MODEL], output, "choose another --output")
    settings = config.load(run / directory.CONFIG, []).config
    tokenizer = Tokenizer.load(run / directory.TOKENIZER)
    sizes = (settings.model, settings.attention, tokenizer.source.size, tokenizer.target.size)
    weights, state = _mean(paths)
    # nothing is built before the weights are known to have its size
    with torch.device("meta"), uninitialised():
        expected = tensor_file.own_tensors(Transformer(*sizes))
    tensor_file.check_shapes(expected, weights, paths[-1])
    model = Transformer(*sizes)
    tensor_file.fill(tensor_file.own_tensors(model), weights, paths[-1])
    training = {
        "update": state["update"],
        "target_tokens": state["tokens"],
        "seconds": state["seconds"],
        "averaged": [path.name for path in paths],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "validation": {},
        "versions": directory.versions(),
    }
    directory.save(output, model, settings, tokenizer, training, dtype)
    return paths


def _mean(paths: list[Path]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Mean of the model's tensors, summed up in float64, and the last one's state."""
    sums: dict[str, Tensor] = {}
    state: dict[str, Any] = {}
    for path in paths:
        try:
            tensors, record = tensor_file.read(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is gone: the run is still training; try again") from error
        weights = {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
        if sums:
            tensor_file.check_shapes(sums, weights, path)
        found = record.get("state")
        if not isinstance(found, dict) or not {"update", "tokens", "seconds"} <= found.keys():
            raise CheckpointError(f"{path} does not say how far the run had come; expected what `gma train` writes")
        state = found
        for name, tensor in weights.items():
            sums[name] = sums.get(name, torch.zeros((), dtype=torch.float64)) + tensor.double()
    return {name: total / len(paths) for name, total in sums.items()}, state
