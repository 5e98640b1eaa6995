"""Text and tokens: reading lines, splitting words, vocabularies."""
