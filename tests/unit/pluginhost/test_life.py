"""A plugin's process is started again when it dies; one that never loaded is not."""

import asyncio
import logging

from beige.pluginhost.child import Child
from beige.pluginhost.frames import Close
from beige.pluginhost.life import Life

LOG = logging.getLogger("test")


class Acted(Child):
    """A process that ends before anybody looks, as on a loaded machine: both frames come in one read."""

    def __init__(self, on_end, *, loads):
        super().__init__(LOG, None, on_end)
        self._loads = loads

    async def start(self, load, directory):
        if self._loads:
            self.loaded()
        self.finish("its run() raised RuntimeError")
        return ""

    async def kill(self):
        return await self.ended()


def live(*, loads, lives):
    """What `Life` says once it has had `lives` processes, or has given up."""
    begun = []

    async def body():
        enough = asyncio.Event()

        def child(on_end):
            begun.append(1)
            if len(begun) >= lives:
                enough.set()
            return Acted(on_end, loads=loads)

        life = Life("rig", Close(), "/", LOG, child)
        await asyncio.wait_for(life.start(), 30)
        if not life.problem:
            await asyncio.wait_for(enough.wait(), 30)
        said = life.problem, life.ending, life.child
        await life.close()
        return said

    return asyncio.run(body()), len(begun)


def test_one_that_ends_as_soon_as_it_is_loaded_is_started_again():
    said, begun = live(loads=True, lives=3)
    assert said == ("", "its run() raised RuntimeError", None)
    assert begun >= 3


def test_one_that_never_loads_is_not_tried_again():
    said, begun = live(loads=False, lives=1)
    assert said == ("its run() raised RuntimeError", "", None)
    assert begun == 1
