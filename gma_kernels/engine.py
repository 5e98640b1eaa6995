"""The native decoding engine (csrc/cpu/engine): models with packed weights, and batches that step on them."""

from gma_kernels import native

status = native.status

if native.extension is not None:
    Batch, PackedModel = native.extension.Batch, native.extension.PackedModel
    simd_level, decoding_level = native.extension.simd_level, native.extension.decoding_level
