"""Files that are whole or absent: atomic writes, tensors with a digest, locks."""
