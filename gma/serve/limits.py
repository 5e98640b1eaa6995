"""Limits as options: name=number."""

from collections.abc import Sequence

from pydantic import ValidationError

from gma.errors import UserError
from gma.serve.protocol import Limits


def parse_limits(options: Sequence[str]) -> Limits:
    """Those of the protocol, with others in the place of some."""
    given: dict[str, str] = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals or name not in Limits.model_fields:
            raise UserError(f"--limit is {option!r}; expected name=number, a name of {', '.join(Limits.model_fields)}")
        given[name] = value
    try:
        limits = Limits.model_validate(given)
    except ValidationError as error:
        raise UserError(f"--limit {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}") from None
    for name, value in limits:
        if not 0 < value < 1e9:
            raise UserError(f"--limit {name} is {value}; expected more than 0")
    if not 2 <= limits.sentence_tokens < 1024:
        raise UserError(f"--limit sentence_tokens is {limits.sentence_tokens}; expected 2 to 1023")
    if limits.words_at_once < 8:
        raise UserError(f"--limit words_at_once is {limits.words_at_once}; expected 8 or more")
    return limits
