"""Reproducing the paper: its systems, its published numbers, the report that compares them."""
