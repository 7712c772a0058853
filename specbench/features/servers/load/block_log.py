"""The log of finished blocks of load, from which an interrupted measurement resumes."""

from dataclasses import replace
from pathlib import Path

import msgspec

from specbench.features.servers.load.blocks import Block
from specbench.features.servers.request_log import LoggedRequest, RequestLog, read_log

BLOCKS, REQUESTS = "blocks.jsonl", "requests.jsonl"


class BlockLog:
    """The log of finished blocks, one JSON line each. Their requests are in the log of requests."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / BLOCKS
        self.requests = RequestLog(folder / REQUESTS)
        self.blocks: list[Block] = []
        if self.path.exists():
            by_block: dict[int, list[LoggedRequest]] = {}
            for request in self.requests.entries.values():
                by_block.setdefault(request.key.block, []).append(request)
            self.blocks = [replace(block, requests=by_block.get(block.id, [])) for block in read_log(self.path, Block)]

    def add(self, block: Block) -> None:
        """Append a finished block."""
        self.blocks.append(block)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(replace(block, requests=[])) + b"\n")
