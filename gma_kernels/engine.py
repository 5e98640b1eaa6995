"""The native decoding engine (csrc/cpu/engine): models with packed weights, and batches that step on them."""

from gma_kernels import native

status = native.status

if native.extension is not None:
    Batch, PackedModel, simd_level = native.extension.Batch, native.extension.PackedModel, native.extension.simd_level
