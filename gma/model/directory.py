"""A trained model on disk: config.toml, model.safetensors, tokenizer.json, training.json. Loading executes nothing.

One that `gma segment` has written has a segmenter.safetensors too, and translates by meaning units.
"""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from gma import config
from gma.config import Config
from gma.errors import UserError
from gma.model import hub
from gma.model.device import choose_device
from gma.model.inference import Inference
from gma.model.transformer import Transformer
from gma.model.uninitialised import uninitialised
from gma.policies import Segmenter
from gma.storage import atomic, foreign, tensor_file
from gma.storage.digest import fingerprint
from gma.text.tokenizer import Tokenizer
from gma.text.vocabulary import Vocabulary

# models that come with the package, a folder each, and the one that is used where none is named
SHIPPED, DEFAULT = Path(__file__).parents[1] / "pretrained", "de-en"
CONFIG, MODEL, TOKENIZER, TRAINING = "config.toml", "model.safetensors", "tokenizer.json", "training.json"
SEGMENTER = "segmenter.safetensors"
# in training.json, of a model that translates by meaning units: how its segmenter was made
UNITS = "meaning_units"
# what `simuleval --system-dir` looks for; not needed to load
SIMULEVAL, SIMULEVAL_TEXT = "main.yaml", "agent_class: gma.simuleval_agent.GMAAgent\nmodel: .\n"


class ModelDirectoryError(UserError, ValueError):
    """A folder that holds no usable model; the message names the file and the reason."""


class Loaded(NamedTuple):
    model: Transformer
    config: Config
    tokenizer: Tokenizer
    training: dict[str, Any]


def find(name: str | Path) -> Path:
    """The folder `name` if there is a model in it, else the model of that name that comes with the package.

    One on a hub (`hf://organisation/name@revision`) is fetched first.
    """
    if hub.is_name(name):
        return hub.fetch_model(name)
    folder = Path(name)
    # not the name as it was given, which may end in a slash
    is_shipped = str(folder) in shipped() and not (folder / CONFIG).exists()
    return SHIPPED / folder if is_shipped else folder


def shipped() -> list[str]:
    """Names of the models that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def save(
    folder: Path,
    model: nn.Module,
    config: Config,
    tokenizer: Tokenizer,
    training: dict[str, Any],
    dtype: torch.dtype | None = None,
) -> None:
    """Write or replace the files, each whole; the weights last, bound to their tokenizer.

    dtype: of the weights on disk; None for the model's own. Loading converts them back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    atomic.replace_text(folder / CONFIG, config.dump())
    tokenizer.save(folder / TOKENIZER)
    atomic.replace_text(folder / SIMULEVAL, SIMULEVAL_TEXT)
    atomic.replace_text(folder / TRAINING, json.dumps(training, indent=2, ensure_ascii=False) + "\n")
    record = {"tokenizer": fingerprint((folder / TOKENIZER).read_bytes())}
    weights = {
        name: tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor
        for name, tensor in tensor_file.own_tensors(model).items()
    }
    tensor_file.write(folder / MODEL, weights, record)


def load(model: str | Path = DEFAULT, device: str | torch.device = "cpu", inference: Inference | None = None) -> Loaded:
    """A trained model in evaluation mode, with its tokenizer and settings. Nothing in its files is ever executed.

    >>> import gma
    >>> model = gma.load("de-en")
    >>> model.config.data.source, model.config.data.target, model.model.policy.name
    ('de', 'en', 'gaussian')

    Args:
        model: its folder, the name of one that comes with the package, or `hf://organisation/name@revision`.
        device: 'cpu', 'cuda', 'cuda:N', or 'auto' for a GPU if there is one.
        inference: how it is decoded; None for the usual way.
    """
    folder = find(model)
    place = choose_device(device) if isinstance(device, str) else device
    for name in (CONFIG, MODEL, TOKENIZER, TRAINING):
        if not (folder / name).is_file():
            raise ModelDirectoryError(f"{folder / name} is missing; expected a folder that `gma train` has written")
    try:
        settings = config.load(folder / CONFIG, []).config
        training = foreign.read_json(folder / TRAINING)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        weights = tensor_file.read(folder / MODEL)
    except UserError as error:
        raise ModelDirectoryError(str(error)) from error
    except OSError as error:
        raise ModelDirectoryError(f"{error.filename} cannot be read: {error.strerror}") from error
    if not isinstance(training, dict):
        raise ModelDirectoryError(f"{folder / TRAINING} holds {training!r:.40}; expected what `gma train` has written")
    if weights.record.get("tokenizer") != fingerprint((folder / TOKENIZER).read_bytes()):
        raise ModelDirectoryError(
            f"{folder / TOKENIZER} is not the one {MODEL} was trained with; take both from one place"
        )
    sizes = (settings.model, settings.attention, tokenizer.source.size, tokenizer.target.size)
    try:
        # nothing of a size that a stranger has chosen is built before the weights are known to have it
        with torch.device("meta"), uninitialised():
            expected = tensor_file.own_tensors(Transformer(*sizes))
        tensor_file.check_shapes(expected, weights.tensors, folder / MODEL)
        with uninitialised():
            network = Transformer(*sizes)
        network.inference = inference or network.inference
        tensor_file.fill(tensor_file.own_tensors(network), weights.tensors, folder / MODEL)
        if UNITS in training:
            network.use_segmenter(_load_segmenter(folder, tokenizer.source, settings.model.width))
    except ValueError as error:
        raise ModelDirectoryError(str(error)) from error
    return Loaded(network.to(place).eval(), settings, tokenizer, training)


def save_segmenter(folder: Path, segmenter: Segmenter) -> None:
    """Add what finds meaning units to a model that `save` has written, bound to its weights."""
    record = {"hidden": segmenter.hidden.out_features, "model": tensor_file.digest(folder / MODEL)}
    tensor_file.write(folder / SEGMENTER, segmenter.state_dict(), record)


def _load_segmenter(folder: Path, vocabulary: Vocabulary, width: int) -> Segmenter:
    path = folder / SEGMENTER
    if not path.is_file():
        raise ModelDirectoryError(
            f"{path} is missing; the model needs it to find meaning units: run `gma segment` again"
        )
    try:
        tensors, record = tensor_file.read(path)
    except tensor_file.DamagedFile as error:
        raise ModelDirectoryError(f"{error}; run `gma segment` again") from error
    hidden = record.get("hidden")
    if not isinstance(hidden, int) or hidden < 1 or record.get("model") != tensor_file.digest(folder / MODEL):
        raise ModelDirectoryError(f"{path} was not made for the {MODEL} beside it; take both from one place")
    with torch.device("meta"), uninitialised():
        expected = tensor_file.own_tensors(Segmenter(vocabulary, width, hidden))
    tensor_file.check_shapes(expected, tensors, path)
    with uninitialised():
        segmenter = Segmenter(vocabulary, width, hidden)
    tensor_file.fill(tensor_file.own_tensors(segmenter), tensors, path)
    return segmenter


def versions() -> dict[str, str]:
    """Of what a model was made with, for training.json."""
    return {"gma": version("gma"), "torch": torch.__version__, "python": platform.python_version()}
