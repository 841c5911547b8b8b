"""A class for Ray to wrap, which has what an engine has, a child process and a block of shared memory, and starts in no time."""

import asyncio
import subprocess
import sys
import time
from uuid import uuid4

MARK = uuid4().hex
"""An argument of every child, by which it is found whoever its parent has become."""
CHILD = """
from multiprocessing import resource_tracker
resource_tracker.register = lambda *_: None
from multiprocessing.shared_memory import SharedMemory
import time
memory = SharedMemory(create=True, size=4096)
print("/dev/shm/" + memory.name, flush=True)
time.sleep(600)
"""


class StubEngine:
    def __init__(self):
        self.child, self.file, self.num_dropped = None, "", 0

    async def setup(self, slow_s=0.0):
        self.child = subprocess.Popen([sys.executable, "-c", CHILD, MARK], stdout=subprocess.PIPE, text=True)
        self.file = self.child.stdout.readline().strip()
        await asyncio.sleep(slow_s)
        return "facts"

    async def is_set_up(self):
        return self.child is not None

    async def has(self):
        return self.child.pid, self.file

    async def generate(self, requests):
        """Each request says what happens."""
        for what, detail in requests:
            if what == "wait":
                await self._wait(detail)
            elif what == "hang":
                time.sleep(detail)  # the whole actor
            elif what == "raise":
                raise detail
        return [detail for _, detail in requests]

    async def _wait(self, seconds):
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.num_dropped += 1
            raise

    async def dropped(self):
        return self.num_dropped

    async def apply_weights(self, manifest):
        await asyncio.sleep(30)

    async def shutdown(self):
        self.child.kill()
