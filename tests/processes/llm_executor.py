"""A sandbox executor without Docker: serves the core tools on the bus in a directory per agent.

It stands for `services.sandbox` at the protocol: seals are checked, output is streamed with credit,
cancellation kills the process group. `argv[1]` is the directory; each command and its end is a line
in `effects` there.
"""

import asyncio
import hashlib
import os
import signal
import sys
from pathlib import Path

from beige.bus import Bus
from beige.errors import Failed, Malformed, NotFound
from beige.messages.base import INLINE_LIMIT
from beige.messages.sandbox import ExecItem, ExecResult, PatchResult, ReadResult, WriteResult
from beige.process import run

ROOT = Path(sys.argv[1])
IMAGES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg"}


def effect(line):
    with (ROOT / "effects").open("a") as file:
        file.write(line + "\n")


def place(request, path):
    base = ROOT / request.agent
    base.mkdir(exist_ok=True)
    return base / path.removeprefix("/workspace/")


async def execute(request, body):
    effect(f"start {body.command}")
    try:
        result = await run_command(request, body)
    except asyncio.CancelledError:
        effect(f"killed {body.command}")
        raise
    effect(f"end {body.command}")
    return result


async def run_command(request, body):
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", body.command, cwd=place(request, "."), start_new_session=True,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    kept = {"stdout": bytearray(), "stderr": bytearray()}

    async def pump(name, pipe):
        while data := await pipe.read(4096):
            kept[name] += data
            await request.send(ExecItem(name, data))

    timed_out = False
    try:
        async with asyncio.timeout(body.timeout_s or None):
            await asyncio.gather(
                pump("stdout", process.stdout), pump("stderr", process.stderr), process.wait()
            )
    except TimeoutError:
        timed_out = True
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    code = 124 if timed_out else process.returncode
    return ExecResult(code, bytes(kept["stdout"]), bytes(kept["stderr"]), timed_out=timed_out)


async def read(request, body):
    effect(f"read {body.path}")
    path = place(request, body.path)
    if not path.is_file():
        raise NotFound(f"{body.path}: no such file")
    data = path.read_bytes()
    media = next((media for magic, media in IMAGES.items() if data.startswith(magic)), "")
    if len(data) <= INLINE_LIMIT:
        return ReadResult("image" if media else "text", data, media_type=media, size=len(data))
    for at in range(0, len(data), 65536):
        await request.send(data[at : at + 65536])
    return ReadResult("image" if media else "text", streamed=True, media_type=media, size=len(data))


async def write(request, body):
    path = place(request, body.path)
    data = body.content
    if data is None:
        data = b"".join([chunk async for chunk in request.items()])
        if len(data) != body.size or hashlib.sha256(data).hexdigest() != body.sha256:
            raise Malformed("sha256: is not the content's")
    created = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return WriteResult(len(data), created)


async def patch(request, body):
    path = place(request, body.path)
    text = path.read_text()
    if text.count(body.old) != 1:
        raise Failed(f"{body.path}: `old` occurs {text.count(body.old)} times", executed="no")
    path.write_text(text.replace(body.old, body.new))
    return PatchResult(1, text[: text.index(body.old)].count("\n") + 1)


async def main(context):
    bus = Bus(context.home, context.user)
    handlers = {"sandbox.exec": execute, "sandbox.read": read, "sandbox.write": write, "sandbox.patch": patch}
    bus.serve("sandbox", handlers, capacity=64)
    await bus.start()
    context.ready()
    await context.stop.wait()
    await bus.close()


if __name__ == "__main__":
    run("sandbox", main)
