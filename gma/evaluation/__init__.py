"""Scoring a translator: quality, latency and alignment, as tables, logs, curves and figures."""
