"""The log of finished blocks of load, from which an interrupted measurement resumes."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from specbench.errors import ConfigError
from specbench.features.servers.load.blocks import Block
from specbench.features.servers.request_log import LoggedRequest, RequestLog, complete_lines
from specbench.features.servers.served import Counters

BLOCKS, REQUESTS = "blocks.jsonl", "requests.jsonl"


@dataclass(frozen=True)
class _Line:
    """A line of the log. The requests of the block are in the log of requests."""

    id: int
    side: str
    concurrency: int
    pair: int
    begin: float
    end: float
    before: Counters | None
    after: Counters | None
    waiting: float | None
    lag: float
    cpu: float


class BlockLog:
    """The log of finished blocks, one JSON line each."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / BLOCKS
        self.requests = RequestLog(folder / REQUESTS)
        self.blocks: list[Block] = []
        if self.path.exists():
            by_block: dict[int, list[LoggedRequest]] = {}
            for request in self.requests.entries.values():
                by_block.setdefault(request.key.block, []).append(request)
            for line in complete_lines(self.path):
                try:
                    row = msgspec.json.decode(line, type=_Line)
                except msgspec.DecodeError as error:
                    raise ConfigError(
                        f"{self.path}: damaged ({error}); help: remove the folder, and run again"
                    ) from None
                self.blocks.append(Block(**vars(row), requests=by_block.get(row.id, [])))

    def add(self, block: Block) -> None:
        """Append a finished block."""
        self.blocks.append(block)
        values = {name: value for name, value in vars(block).items() if name != "requests"}
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(_Line(**values)) + b"\n")
