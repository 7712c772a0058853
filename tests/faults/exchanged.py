"""Acceptance profiles of other tools, changed in every way: read and compared as `compare` does."""

import json
import math
import random
import signal
import traceback
from pathlib import Path
from typing import Any

from specbench.analysis import speculation_profile
from specbench.analysis.acceptance_profile import AcceptanceProfile
from specbench.errors import ConfigError
from specbench.features.exchange.profile_comparison import compare_profiles
from specbench.features.exchange.profile_sources import is_profile, profiles_of
from specbench.features.gate.verdict import GateLimits
from tests.faults.attack import Outcome
from tests.fixtures.answering_server import metrics
from tests.fixtures.mutations import mutated_json, mutated_text

SECONDS = 5.0  # that a file may take
RECORD = {
    "acceptance_histogram": [2, 0, 1], "num_spec_steps": 3, "num_accepted_draft_tokens": 2, "num_spec_tokens": 2,
}  # fmt: skip
AIPERF = {
    "aiperf_version": "0.13.0", "request_count": {"unit": "requests", "avg": 2.0}, "was_cancelled": False,
    "input_config": {"loadgen": {"concurrency": 4}, "endpoint": {"model_names": ["m"]}},
    "total_spec_decode_steps": {"unit": "count", "avg": 16.0},
    "total_accepted_draft_tokens": {"unit": "tokens", "avg": 36.0}, "total_draft_tokens": {"unit": "tokens", "avg": 64.0},
    "spec_decode_token_weighted_acceptance_length": {"unit": "ratio", "avg": 3.25},
    "pooled_spec_decode_acceptance_histogram": {"0": 2, "1": 2, "2": 4, "3": 6, "4": 2},
}  # fmt: skip
NVIDIA = speculation_profile.written(
    AcceptanceProfile(source="x", survival=(0.8, 0.5, 0.2), rounds=10, method="eagle3")
)
FILES = {
    "nvidia.json": NVIDIA.encode(),
    "metrics.txt": b"# TYPE vllm:spec_decode counter\n" + metrics("vllm"),
    "records.jsonl": b"".join(json.dumps({"id": i, "metrics": RECORD}).encode() + b"\n" for i in range(3)),
    "record.json": json.dumps({"metrics": RECORD}).encode(),
    "aiperf.jsonl": json.dumps(
        {"spec": {**RECORD, "acceptance_histogram": {"0": 2, "2": 1}, "engine": "vllm"}}
    ).encode(),
    "profile_export_aiperf.json": json.dumps(AIPERF).encode(),
}


def fuzzed(trials: int, seed: int, folder: Path) -> Outcome:
    """Change a file: an error in one line that names it, or a profile that is possible."""
    outcome = Outcome()
    for trial in range(trials):
        rng = random.Random(f"{seed}:{trial}")
        name = sorted(FILES)[trial % len(FILES)]
        text, how = _changed(name, rng)
        path = folder / f"{trial}-{name}"
        path.write_bytes(text)
        outcome.add(f"trial {trial}, {name}, {how}", _problems(path))
        path.unlink()
    return outcome


def _changed(name: str, rng: random.Random) -> tuple[bytes, str]:
    text = FILES[name]
    if rng.random() < 0.15:
        return mutated_text(text, rng)
    if name == "metrics.txt":
        lines = text.decode().splitlines()
        at = rng.randrange(1, len(lines))
        value = rng.choice(("NaN", "+Inf", "-1", "1.5", "1e400", "9" * 40, "x", "999999999"))
        new = rng.choice((f"{lines[at].rpartition(' ')[0]} {value}", lines[at].replace('="', f'="{value}'), ""))
        return "\n".join([*lines[:at], new, *lines[at + 1 :]]).encode(), f"line {at + 1}: {new}"
    rows = text.splitlines() if name.endswith("jsonl") else [text]
    at = rng.randrange(len(rows))
    rows[at], how = mutated_json(rows[at], rng)
    return b"\n".join(rows), how


def _out_of_time(*_: Any) -> None:
    raise TimeoutError


def _problems(path: Path) -> list[str]:
    before = signal.signal(signal.SIGALRM, _out_of_time)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        return _of_profiles(path) if is_profile(path) else []
    except TimeoutError:
        return [f"no end within {SECONDS:g} s"]
    except ConfigError as error:
        text = str(error)
        is_readable = "\n" not in text and len(text) < 700 and str(path) in text
        return [] if is_readable else [f"an error that is long, of several lines or without the file: {text[:300]!r}"]
    except Exception:
        return [f"traceback: {' | '.join(traceback.format_exc().splitlines()[-4:])}"]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _of_profiles(path: Path) -> list[str]:
    found = []
    for profile in profiles_of(path):
        numbers = [profile.mean_length, profile.deviation, *profile.conditional, *profile.shares, *profile.survival]
        found += [f"figures {numbers[:20]}"] * (
            not all(math.isfinite(number) and number >= -1e-9 for number in numbers)
        )
        found += [f"{profile.rounds} rounds"] * (profile.rounds < 0)
        found += ["a share above 1"] * any(share > 1.0 + 1e-9 for share in (*profile.conditional, *profile.survival))
        json.dumps(speculation_profile.written(profile)).encode()
        limits = GateLimits()
        texts = [str(verdict) for verdict in compare_profiles([profile], [profile], limits)]
        found += [f"compared: {text}" for text in texts if " nan" in text or " inf" in text]
    return found
