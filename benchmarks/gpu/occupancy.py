"""What a kernel takes of a processor, and the share of its threads that can be at work at once.

The limits of NVIDIA parts are those of cuda_occupancy.h and of the CUDA programming guide's table of compute
capabilities, those of gfx942 AMD's for CDNA3.
"""

from typing import NamedTuple


class Resources(NamedTuple):
    """One kernel compiled for one part."""

    backend: str
    kernel: str
    dtype: str
    head_size: int
    capability: str  # "8.0", "9.0", "10.0", "12.0" or "gfx942"
    threads: int  # of a block
    registers: int  # of a thread
    spills_bytes: int
    shared_bytes: int  # of a block


class Part(NamedTuple):
    """Limits of one processor (streaming multiprocessor, compute unit) and of one block on it."""

    threads: int
    warp: int
    blocks: int
    registers: int
    register_unit: int  # a warp's registers are handed out in multiples of this
    shared_bytes: int
    shared_reserved_bytes: int  # taken by the system from every block
    largest_shared_bytes: int  # of one block


KIB = 1024
PARTS = {
    "8.0": Part(2048, 32, 32, 65536, 256, 164 * KIB, KIB, 163 * KIB),
    "9.0": Part(2048, 32, 32, 65536, 256, 228 * KIB, KIB, 227 * KIB),
    "10.0": Part(2048, 32, 32, 65536, 256, 228 * KIB, KIB, 227 * KIB),
    "12.0": Part(1536, 32, 24, 65536, 256, 100 * KIB, KIB, 99 * KIB),
    # four SIMD units of 512 registers in each of 64 lanes, at most 8 waves on each
    "gfx942": Part(2048, 64, 16, 131072, 512, 64 * KIB, 0, 64 * KIB),
}
SHARED_UNIT = 128


def occupancy(capability: str, threads: int, registers: int, shared: int) -> float:
    """Resident threads over the most there can be, with blocks of this size: an estimate, 0 if no block fits."""
    part = PARTS[capability]
    if shared > part.largest_shared_bytes:
        return 0.0
    warps = -(-threads // part.warp)
    warp_registers = _round_up(max(registers, 1) * part.warp, part.register_unit)
    # each of a processor's four schedulers has its own registers
    by_registers = 4 * (part.registers // 4 // warp_registers) // warps
    by_threads = part.threads // (warps * part.warp)
    taken = _round_up(shared, SHARED_UNIT) + part.shared_reserved_bytes
    by_shared = part.shared_bytes // taken if taken else part.blocks
    return min(by_registers, by_threads, by_shared, part.blocks) * warps * part.warp / part.threads


def _round_up(x: int, unit: int) -> int:
    return -(-x // unit) * unit
