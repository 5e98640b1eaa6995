"""`gma serve`: one translator for many speakers and readers at once; `gma serve-load`: many speakers for it."""

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from gma.cli.options import Device, ModelPath, console
from gma.errors import UserError
from gma.terminal import say


def serve(
    model: ModelPath = Path("de-en"),
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8000,
    token: Annotated[
        str | None, typer.Option(envvar="GMA_TOKEN", help="Speakers must know it; better in the environment.")
    ] = None,
    open_to_all: Annotated[bool, typer.Option("--open", help="Listen beyond this machine without a token.")] = False,
    origin: Annotated[
        list[str] | None, typer.Option(help="Another site's pages may connect, such as https://example.org.")
    ] = None,
    proxy: Annotated[
        str | None, typer.Option(help="Believe this proxy's X-Forwarded-For, such as 127.0.0.1; * for any.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="Another limit: docs/protocol.md lists them.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="That compute; one serves hundreds of speakers.")] = 1,
    device: Device = "auto",
) -> None:
    """Serve live translation: WebSockets, readers, metrics. Needs gma[serve]."""
    if token is not None and not token:
        raise UserError("--token is empty; expected something that cannot be guessed")
    if not _is_loopback(host) and token is None and not open_to_all:
        raise UserError(
            f"--host is {host}, which others can reach; give --token, or --open if everybody may have the machine "
            "translate"
        )
    try:
        import prometheus_client  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise UserError(f'gma serve needs the extra: pip install "gma[serve]" ({error})') from None
    import torch

    from gma.model import directory
    from gma.model.device import choose_device
    from gma.serve.limits import parse_limits
    from gma.serve.run import run

    limits = parse_limits(limit or [])
    torch.set_num_threads(threads)
    loaded = directory.load(model, choose_device(device))
    run(loaded, model, console, limits=limits, host=host, port=port, token=token, origins=origin or [], proxies=proxy)


def serve_load(
    url: Annotated[str, typer.Option(help="Of a running gma serve.")] = "http://127.0.0.1:8000",
    sessions: Annotated[int, typer.Option(min=1, help="Speakers at a time.")] = 200,
    words_per_second: Annotated[float, typer.Option(min=0.1, max=50.0, help="Of each of them.")] = 2.5,
    seconds: Annotated[float, typer.Option(min=1.0, help="How long they talk.")] = 60.0,
    input: Annotated[
        Path | None, typer.Option(help="What they say, a line at a time.", show_default="sentences of the demo")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="Latency.", show_default="the server's")] = None,
) -> None:
    """Let many speakers talk to a server, and say how late its words are beyond their policy."""
    try:
        import websockets  # noqa: F401
    except ImportError as error:
        raise UserError(f'gma serve-load needs the extra: pip install "gma[serve]" ({error})') from None
    import asyncio

    from gma.cli.demo import SENTENCES
    from gma.client.talk import address
    from gma.serve.load import speak

    texts = [line for line in input.read_text(encoding="utf-8").splitlines() if line.strip()] if input else SENTENCES
    load = asyncio.run(
        speak(address(url), texts, speakers=sessions, rate=words_per_second, seconds=seconds, delta=delta)
    )
    delays = ", ".join(f"p{share} {load.percentile(share / 100):.0f} ms" for share in (50, 95, 99))
    say(
        console,
        f"{sessions} speakers, {load.spoken:,} words spoken, {len(load.delays):,} written in {load.sentences:,} "
        f"sentences, {load.lost} speakers lost; beyond the policy: {delays}",
    )
    for problem, count in load.problems.most_common(3):
        say(console, f"{count} speakers: {problem}")
    raise typer.Exit(1 if load.lost else 0)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
