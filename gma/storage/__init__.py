"""Files that are whole or absent: atomic writes, downloads, tensors with a digest, locks."""
