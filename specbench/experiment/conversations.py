"""The answers to earlier turns, for samples that continue a conversation."""

from specbench.data.prompting import Turn
from specbench.data.task import Data, Sample
from specbench.runs.record import Record
from specbench.runs.recorder import Recording
from specbench.runs.run_folder import read


class Conversations:
    """The answers of each method to samples that a later sample continues."""

    def __init__(self, data: Data, recorder: Recording) -> None:
        self._samples = {sample.id: sample for sample in data.samples}
        self._needed = {sample.after for sample in data.samples if sample.after}
        self._texts: dict[tuple[str, str, int], str | None] = {}
        if self._needed:
            for record in read(recorder.folder):
                self.add(record)

    def add(self, record: Record) -> None:
        """Keep the text of a generation that a later sample continues; None for a failed one."""
        if record.sample in self._needed:
            self._texts[record.key] = record.text if record.error is None else None

    def before(self, sample: Sample, method: str, repeat: int) -> list[Turn] | None:
        """Return the turns before a sample, in order; None if one of them failed."""
        turns: list[Turn] = []
        while sample.after:
            sample = self._samples[sample.after]
            answer = self._texts[method, sample.id, repeat]
            if answer is None:
                return None
            turns.insert(0, (sample, answer))
        return turns


def most_turns(data: Data) -> int:
    """Return the number of turns of the longest conversation."""
    following = {sample.after: sample.id for sample in data.samples if sample.after}
    longest = 1
    for sample in data.samples:
        count, at = 1, sample.id
        while at in following:
            count, at = count + 1, following[at]
        longest = max(longest, count)
    return longest
