"""A tools executor whose effect can be counted: appends the call's argument to a file, then answers."""

import asyncio
import os
import random
import sys

from beige.bus import Bus
from beige.messages.tools import ToolResult
from beige.process import run


async def main(context):
    effects = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def call(request, body):
        verb, mark = body.args
        if verb == "sleep":
            os.write(effects, f"started {mark}\n".encode())
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                os.write(effects, f"cancelled {mark}\n".encode())
                raise
        os.write(effects, f"{mark}\n".encode())
        await asyncio.sleep(random.uniform(0, 0.02))
        return ToolResult(success=True, output=mark)

    bus = Bus(context.home, context.user)
    bus.serve("tools", {"tools.call": call}, capacity=64)
    await bus.start()
    context.ready()
    await context.stop.wait()
    await bus.close()


if __name__ == "__main__":
    run("tools", main)
