"""Points of a sweep that nobody has measured."""

from dataclasses import fields
from typing import Any

from gma.evaluation.sweep import Point

BLANK = {"str": "", "int": 1, "float": 1.0, "float | None": None}


def made_up_point(**scores: Any) -> Point:
    blank = {field.name: BLANK[str(getattr(field.type, "__name__", field.type))] for field in fields(Point)}
    return Point(**{**blank, **scores})
