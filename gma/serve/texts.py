"""`POST /v1/translate`: whole texts, with no one waiting for their first word."""

import asyncio
import threading
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gma.decoding.translate import translate_lines
from gma.model.directory import Loaded
from gma.serve.protocol import Latency
from gma.text.words import LONGEST_WORD

LARGEST_BODY = 1 << 20


class TextRequest(BaseModel):
    """`text`: a text or a list of them; every line is translated sentence by sentence, and stays one line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | list[str]
    delta: Latency | None = None


class Texts:
    """Translates one request after another, in a thread of its own beside the model thread of the speakers.

    Words that are too long for any are left out; `left_out` of the answer has the beginning of each.

    Args:
        words: that a request may have.
    """

    def __init__(self, loaded: Loaded, words: int, waiting: int = 8):
        self._loaded, self._words, self._waiting = loaded, words, waiting
        self._turn = threading.Lock()
        self._requests = 0

    async def answer(self, request: Request) -> Response:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                return _error(413, "too_big", f"expected at most {LARGEST_BODY:,} bytes")
        try:
            asked = TextRequest.model_validate_json(bytes(body))
            delta = None if asked.delta is None else self._loaded.model.latency(asked.delta)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return _error(422, "schema", f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300])
        except ValueError as error:
            return _error(422, "delta", str(error))
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        words = sum(len(text.split()) for text in texts)
        if words > self._words:
            return _error(413, "too_long", f"the text has {words:,} words; expected at most {self._words:,}")
        if self._requests >= self._waiting:
            return _error(503, "full", "other texts are waiting", {"retry-after": "5"})
        self._requests += 1
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, self._translate, texts, delta)
        finally:
            self._requests -= 1
        answer: dict[str, object] = {"text": found[0] if isinstance(asked.text, str) else found}
        if long := [word[:20] for text in texts for word in text.split() if len(word) > LONGEST_WORD]:
            answer["left_out"] = long
        return JSONResponse(answer)

    def _translate(self, texts: Sequence[str], delta: float | None) -> list[str]:
        lines = [text.split("\n") for text in texts]
        with self._turn:
            flat = iter(translate_lines(self._loaded, [line for text in lines for line in text], delta=delta))
        return ["\n".join(next(flat) for _ in text) for text in lines]


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"type": "error", "code": code, "message": message}, status_code=status, headers=headers)
