"""The compiled library: torch finds its operators in it, and its plain C functions (csrc/torch/) are called from here.

It depends on neither Python's version nor torch's: of the one it uses nothing, of the other the stable ABI.
"""

import ctypes
import json
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

INTEGER, REAL, ADDRESS, TEXT = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p
# what functions return that failed
FAILED = -(2**63)
ERRORS: dict[str, type[Exception]] = {"ValueError": ValueError, "MemoryError": MemoryError}

# what functions take and, where it is not a number, return
TAKES: dict[str, tuple[Any, ...]] = {
    "build_facts": (),
    "cuda_devices": (),
    "kept_block_bytes": (),
    "simd_level": (),
    "simd_levels": (),
    "decoding_level": (),
    "use_simd": (TEXT,),
    "model_pack": (ADDRESS, ADDRESS, INTEGER, ADDRESS, ADDRESS, ADDRESS, ADDRESS, INTEGER, TEXT),
    "model_free": (ADDRESS,),
    "model_bytes": (ADDRESS,),
    "model_simd_level": (ADDRESS,),
    "batch_make": (ADDRESS,),
    "batch_free": (ADDRESS,),
    "batch_open": (ADDRESS, REAL, INTEGER),
    "batch_change_latency": (ADDRESS, INTEGER, REAL),
    "batch_close": (ADDRESS, INTEGER),
    "batch_fork": (ADDRESS, INTEGER),
    "batch_copy": (ADDRESS, ADDRESS, ADDRESS, INTEGER),
    "batch_push": (ADDRESS, ADDRESS, ADDRESS, INTEGER, ADDRESS, INTEGER, ADDRESS),
    "batch_advance": (ADDRESS, ADDRESS, INTEGER, ADDRESS, ADDRESS),
    "batch_logits": (ADDRESS, ADDRESS, INTEGER),
    "batch_write": (ADDRESS, ADDRESS, INTEGER, ADDRESS, INTEGER, INTEGER),
    "batch_take_back": (ADDRESS, INTEGER, INTEGER),
    "batch_force": (ADDRESS, ADDRESS, ADDRESS, INTEGER, ADDRESS),
    "batch_slots": (ADDRESS, ADDRESS, INTEGER),
    "batch_needed": (ADDRESS, INTEGER),
    "batch_arrived": (ADDRESS, INTEGER),
    "batch_bytes": (ADDRESS,),
    "batch_profile": (ADDRESS,),
}
RETURNS = dict.fromkeys(
    ("build_facts", "cuda_devices", "simd_level", "simd_levels", "decoding_level", "model_simd_level", "batch_profile"),
    TEXT,
) | dict.fromkeys(("model_free", "batch_free"))


class Library:
    """Raises OSError if there is none at that path, or one that does not fit.

    Attributes:
        functions: as `functions.gma_batch_open`; they raise what went wrong
    """

    def __init__(self, path: Path):
        # registers the kernels, also for exported programs, which do not call our functions
        torch.ops.load_library(path)
        self.functions: Any = ctypes.CDLL(str(path))
        for name in ("error", "error_kind"):
            getattr(self.functions, f"gma_{name}").restype = TEXT
        for name, takes in TAKES.items():
            function = getattr(self.functions, f"gma_{name}")
            function.argtypes, function.restype = takes, RETURNS.get(name, INTEGER)
            if function.restype is not None:
                function.errcheck = self._checked

    def _checked(self, result: Any, function: Any, arguments: tuple) -> Any:
        if result is None or result == FAILED:
            message = self.functions.gma_error().decode(errors="replace")
            raise ERRORS.get(self.functions.gma_error_kind().decode(), RuntimeError)(message)
        return result.decode() if isinstance(result, bytes) else result

    def build_facts(self) -> dict[str, Any]:
        """compiler, flags, simd_levels, cuda_architectures"""
        return json.loads(self.functions.gma_build_facts())

    def cuda_devices(self) -> list[tuple[str, int, int]]:
        """Name and compute capability of each."""
        return [(name, major, minor) for name, major, minor in json.loads(self.functions.gma_cuda_devices())]

    def simd_level(self) -> str:
        return self.functions.gma_simd_level()

    def simd_levels(self) -> list[str]:
        """Those that this build and CPU can run, best first."""
        return json.loads(self.functions.gma_simd_levels())

    def use_simd(self, level: str) -> None:
        self.functions.gma_use_simd(level.encode())

    def kept_block_bytes(self) -> int:
        return self.functions.gma_kept_block_bytes()


def integers(values: Iterable[int]) -> array:
    return array("q", values)


def address(values: array) -> int:
    return values.buffer_info()[0]


def texts(values: Iterable[str]) -> Any:
    """An array of C strings."""
    encoded = [value.encode() for value in values]
    return (ctypes.c_char_p * len(encoded))(*encoded)
