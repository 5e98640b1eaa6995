"""Tables in Markdown."""

from collections.abc import Sequence

from tabulate import tabulate


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """words: how many columns, the first ones, hold text; all others hold numbers and stand to the right."""
    names, *cells = [[cell.replace("|", r"\|") for cell in line] for line in (columns, *rows)]
    sides = ["left"] * words + ["right"] * (len(columns) - words)
    return tabulate(cells, names, tablefmt="pipe", disable_numparse=True, colalign=sides) + "\n"
