"""Which measurements `compare` finds in files, and what it says of those that one side lacks."""

import json
from dataclasses import asdict, replace

import pytest

from specbench.features.exactness.exactness_check import Check, CheckKind
from specbench.features.exactness.outcome import Outcome
from specbench.features.exchange.snapshot_file import SnapshotFile
from specbench.features.gate.snapshot import RunSnapshot
from specbench.features.servers.served_gate import ServedSnapshot
from specbench.features.verify.verification_run import Verification
from tests.fixtures.console import specbench
from tests.fixtures.fabricated import quiet

SOUND = Verification(
    outcome=Outcome.exact, line="exact: sd follows the distribution of target", subject="sd",
    reference="the distribution of target", pair="tiny", tasks=("gsm8k",), temperature=2.0, dtype="float32",
    checks=[Check(CheckKind.tokens, "later tokens, T = 2", "", "p 1", passed=True)],
)  # fmt: skip
WRONG = replace(
    SOUND, outcome=Outcome.differs, line="NOT exact: sd: it departs",
    checks=[Check(CheckKind.tokens, "later tokens, T = 2", "", "p 1e-9", passed=False)],
)  # fmt: skip
OPEN = replace(SOUND, outcome=Outcome.inconclusive, line="inconclusive: sd: the control was not rejected")


def compared(tmp_path, base: Verification, new: Verification, code: int) -> tuple[str, str, str]:
    for name, each in (("base", base), ("new", new)):
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(each)))
    done = specbench("compare", "base.json", "new.json", "-f", "json", cwd=tmp_path, code=code)
    first, *others = json.loads(done.stdout)["verdicts"]
    return first["status"], first["title"], "".join(each["short"] for each in others)


@pytest.mark.parametrize(
    ("base", "new", "code", "title"),
    [
        (SOUND, SOUND, 0, "same exactness"),
        (SOUND, WRONG, 5, "no longer exact"),
        (WRONG, WRONG, 0, "same exactness"),
        (WRONG, SOUND, 0, "exact now"),
        (SOUND, OPEN, 6, "exactness undecided"),
        (WRONG, OPEN, 6, "exactness undecided"),
        (SOUND, replace(SOUND, pair="tiny-t5"), 6, "other verification"),
        (SOUND, replace(SOUND, temperature=1.0), 6, "other verification"),
        (SOUND, replace(SOUND, reference="another"), 6, "other reference"),
    ],
)
def test_a_change_of_a_verification_is_found(base, new, code, title, tmp_path):
    assert compared(tmp_path, base, new, code)[1] == title


def test_another_dtype_is_named(tmp_path):
    assert (
        "dtype: float32 in BASE, bfloat16 in NEW" in compared(tmp_path, SOUND, replace(SOUND, dtype="bfloat16"), 0)[2]
    )


def test_a_kind_of_measurement_that_new_lacks_is_not_comparable(tmp_path):
    runs = RunSnapshot([], [quiet(count=2)], False)
    served = ServedSnapshot(runs=[], verifications=[])
    SnapshotFile({"runs": runs}).save(tmp_path / "runs.json")
    both = SnapshotFile({"runs": runs, "servers": served})
    both.save(tmp_path / "both.json")
    specbench("compare", "runs.json", "both.json", cwd=tmp_path)
    specbench("compare", "both.json", "runs.json", cwd=tmp_path)  # it has no result of a server
    (tmp_path / "verified.json").write_text(json.dumps(asdict(SOUND)))
    shown = specbench("compare", "runs.json", "verified.json", cwd=tmp_path, code=2).stderr
    assert "no kind of measurement in common" in " ".join(shown.split())


def test_a_file_of_another_program_is_no_snapshot(tmp_path):
    (tmp_path / "foreign.json").write_text(json.dumps({"schema": "https://example.org", "values": [1]}))
    shown = specbench("gate", "check", "foreign.json", cwd=tmp_path, code=2).stderr
    assert "is not a snapshot" in shown
