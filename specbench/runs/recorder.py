"""The writer of a run folder's records."""

from dataclasses import replace
from pathlib import Path
from typing import Protocol

from specbench import files
from specbench.errors import ConfigError
from specbench.runs.locking import FolderLock
from specbench.runs.record import Key, Record, line_of, parse_record
from specbench.runs.run_folder import SAMPLES, Expected, listed, load


class Recording(Protocol):
    """Where a run's records go. `done` are the keys of existing records, `folder` is the run's."""

    folder: Path
    done: set[Key]

    def append(self, record: Record) -> Record:
        """Take a record, and return the one that counts."""


class Recorder:
    """Appends records to a run folder's samples.jsonl. `done` are the keys of existing records.

    Removes an incomplete last line, which a killed process can leave; its generation is measured again. Raises ConfigError if
    the file contains anything else that does not belong to the run.
    """

    def __init__(self, lock: FolderLock, expected: Expected) -> None:
        self.folder = lock.folder
        self._lock, self._path = lock, lock.folder / SAMPLES
        self._path.touch()
        whole = self._path.read_bytes()
        end = whole.rfind(b"\n") + 1
        if end < len(whole):
            with self._path.open("rb+") as file:
                file.truncate(end)
        found = load(self.folder, expected)
        if found.problems:
            raise ConfigError(
                f"{self._path}: {listed(found.problems)}; help: delete these lines and run the same command, or measure"
                " everything again with --fresh"
            )
        self.done = {record.key for record in found.records}

    def append(self, record: Record) -> Record:
        """Write a record and return it. A record with invalid times, as after a change of the clock, is written as failed.

        Raises OSError, naming the file, and FolderInUse if another process has broken the lock.
        """
        self._lock.require()
        if not record.has_valid_times:
            failed = record.as_failed("ValueError: the measured times are negative or not finite")
            record = replace(failed, capture_seconds=0.0)
        line = line_of(record)
        try:
            parse_record(line)
        except ConfigError as error:
            raise AssertionError(f"a record that no reader accepts: {error}") from error
        with files.named(self._path), self._path.open("ab") as file:
            file.write(line)
        self.done.add(record.key)
        return record
