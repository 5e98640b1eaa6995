"""The native decoding engine (csrc/cpu/engine): models with packed weights, and batches that step on them."""

import ctypes
import json
import weakref
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gma_kernels import native
from gma_kernels.library import address, integers, texts

status = native.status


# csrc/torch/engine.cpp; None where there is none
_library: Any = native.extension and native.extension.functions


def simd_level() -> str:
    return _library.gma_simd_level()


def decoding_level() -> str:
    """The SIMD level's, with what else the engine has on this CPU."""
    return _library.gma_decoding_level()


class PackedModel:
    """
    Args:
        settings: numbers by the names of `Settings` in csrc/cpu/engine/model.h
        tensors: the model's state; what is read of it later, its embeddings, must stay as it is
        weights: float32, bfloat16 or int8
    """

    def __init__(self, settings: Mapping[str, float], tensors: Mapping[str, Tensor], weights: str):
        for name, tensor in tensors.items():
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise ValueError(f"the tensor {name} is not a contiguous one of float32 on the CPU")
        self.tensors = dict(tensors)
        self.layers, self.vocabulary = int(settings["decoder_layers"]), int(settings["target_vocabulary"])
        self.width = int(settings["width"])
        values = array("d", settings.values())
        addresses = integers(tensor.data_ptr() for tensor in tensors.values())
        dimensions = integers(tensor.dim() for tensor in tensors.values())
        sizes = integers(size for tensor in tensors.values() for size in tensor.shape)
        self.handle = _library.gma_model_pack(
            texts(settings), address(values), len(values),
            texts(tensors), address(addresses), address(dimensions), address(sizes), len(tensors), weights.encode(),
        )  # fmt: skip
        weakref.finalize(self, _library.gma_model_free, self.handle).atexit = False

    @property
    def bytes(self) -> int:
        return _library.gma_model_bytes(self.handle)

    @property
    def simd_level(self) -> str:
        return _library.gma_model_simd_level(self.handle)


class Batch:
    """Slots of sentences that are translated together; one thread at a time steps it, others wait."""

    def __init__(self, model: PackedModel):
        self._model = model
        self._handle = _library.gma_batch_make(model.handle)
        weakref.finalize(self, _library.gma_batch_free, self._handle).atexit = False

    def open(self, delta: float, token: int) -> int:
        """token: the decoder's first"""
        return _library.gma_batch_open(self._handle, delta, token)

    def change_latency(self, slot: int, delta: float) -> None:
        _library.gma_batch_change_latency(self._handle, slot, delta)

    def close(self, slot: int) -> None:
        _library.gma_batch_close(self._handle, slot)

    def fork(self, slot: int) -> int:
        return _library.gma_batch_fork(self._handle, slot)

    def copy(self, origins: Mapping[int, int]) -> None:
        slots, sources = integers(origins), integers(origins.values())
        _library.gma_batch_copy(self._handle, address(slots), address(sources), len(slots))

    def push(self, tokens: Mapping[int, Sequence[int]], wanted: bool) -> Tensor:
        """States of all new tokens, one after the other, slots ascending: [tokens, width]; none unless `wanted`."""
        slots, counts, flat = _flat(tokens)
        found = ctypes.POINTER(ctypes.c_float)()
        rows = _library.gma_batch_push(
            self._handle, address(slots), address(counts), len(slots), address(flat), wanted, ctypes.addressof(found)
        )
        states = torch.empty(rows, self._model.width)
        if rows:
            ctypes.memmove(states.data_ptr(), found, states.nbytes)
        return states

    def advance(
        self, slots: Sequence[int]
    ) -> tuple[list[int], list[int], list[int], list[list[float]], list[list[float]]] | None:
        """None if no slot could go on, else slots that came through, best tokens, source tokens needed, and by layer
        positions and widths."""
        count, layers = len(slots), self._model.layers
        asked, numbers, reals = integers(slots), array("q", bytes(24 * count)), array("d", bytes(16 * count * layers))
        rows = _library.gma_batch_advance(self._handle, address(asked), count, address(numbers), address(reals))
        if rows < 0:
            return None
        through, best, needed = (numbers[count * i : count * i + rows].tolist() for i in range(3))
        positions, widths = (
            [reals[begin + layers * row : begin + layers * (row + 1)].tolist() for row in range(rows)]
            for begin in (0, count * layers)
        )
        return through, best, needed, positions, widths

    def logits(self, rows: int) -> Tensor:
        """[rows, target vocabulary], of the latest step, which must have had so many rows"""
        logits = torch.empty(rows, self._model.vocabulary)
        _library.gma_batch_logits(self._handle, logits.data_ptr(), rows)
        return logits

    def write(self, slots: Sequence[int], tokens: Sequence[int], end_token: int) -> None:
        to, what = integers(slots), integers(tokens)
        _library.gma_batch_write(self._handle, address(to), len(to), address(what), len(what), end_token)

    def take_back(self, slot: int, arrived: int) -> None:
        _library.gma_batch_take_back(self._handle, slot, arrived)

    def force(self, tokens: Mapping[int, Sequence[int]]) -> None:
        slots, counts, flat = _flat(tokens)
        _library.gma_batch_force(self._handle, address(slots), address(counts), len(slots), address(flat))

    def slots(self) -> list[int]:
        room = 64
        while True:
            slots = array("q", bytes(8 * room))
            count = _library.gma_batch_slots(self._handle, address(slots), room)
            if count <= room:
                return slots[:count].tolist()
            room = count

    def needed(self, slot: int) -> int:
        return _library.gma_batch_needed(self._handle, slot)

    def arrived(self, slot: int) -> int:
        return _library.gma_batch_arrived(self._handle, slot)

    @property
    def bytes(self) -> int:
        return _library.gma_batch_bytes(self._handle)

    @property
    def profile(self) -> dict[str, float]:
        """Seconds by part, steps and rows since the batch was made."""
        return json.loads(_library.gma_batch_profile(self._handle))


def _flat(tokens: Mapping[int, Sequence[int]]) -> tuple[array, array, array]:
    """Slots, how many tokens each has, and the tokens."""
    flat: Iterable[int] = (token for given in tokens.values() for token in given)
    return integers(tokens), integers(map(len, tokens.values())), integers(flat)
