"""Parallel text on its way to the trainer: downloaded or generated, prepared, batched."""
