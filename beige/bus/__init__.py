"""The bus for processes: `Bus` calls and serves; one object, one session at a time.

bus = Bus(home, "sandbox/0")
await bus.start()                                    # returns once welcomed, or raises
bus.serve("sandbox", {"sandbox.exec": handler}, capacity=64)     # before start()
result = await bus.call("tools.call", ToolCall(...), agent="travel")
async with bus.open("llm.prompt", PromptRequest(...), agent="travel") as stream:
    async for event in stream: ...
    result = await stream.result()
await bus.close()
"""

from beige.bus.client import Bus, Handler, HopReply, Request, Stream

__all__ = ["Bus", "Handler", "HopReply", "Request", "Stream"]
