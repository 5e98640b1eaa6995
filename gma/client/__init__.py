"""A speaker's side of `gma serve`: text in, words out, and nothing lost when a connection breaks or a server dies.

import asyncio
from gma.client import connect

async def main():
    async with connect("ws://127.0.0.1:8000", delta=2.0) as talk:
        await talk.send("Guten Morgen. Wie geht es dir? ")
        await talk.finish()
        async for event in talk:
            if event.type == "words":
                print(*(word.word for word in event.words))

asyncio.run(main())
"""

from gma.client.talk import ClientError, RemoteTalk, connect

__all__ = ["ClientError", "RemoteTalk", "connect"]
