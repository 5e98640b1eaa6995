"""Training a model: runs that resume to the same bits, checkpoints, validation, many processes."""
