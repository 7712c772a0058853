"""Warnings about the answers of a server, of verifications and of load."""

from collections.abc import Iterable, Sequence

from specbench.features.servers.request_log import LoggedRequest
from specbench.features.servers.served import Counters, Description, SpeculationCounts
from specbench.http_client import Server
from specbench.note import Note, warning

FEWEST_DRAFTED = 50  # drafted tokens at which an acceptance rate of 0 or 1 is suspicious


def remote_notes(servers: Iterable[Server]) -> list[Note]:
    """Warn about servers on other machines, each host once."""
    hosts = dict.fromkeys(server.host for server in servers if not server.is_local)
    return [warning("remote server", f"prompts leave this machine: {host} receives them") for host in hosts]


def answer_notes(entries: Sequence[LoggedRequest], model: str, where: str) -> list[Note]:
    """Warn about answers of another model than the requested one, and about changed sampling parameters."""
    notes = []
    if other := next((entry.model for entry in entries if entry.model and entry.model != model), ""):
        text = f"answers name the model {other!r}, but {model!r} was requested ({where})"
        notes.append(warning("another model", text, subject=where))
    for name, (sent, echoed) in next((entry.changed for entry in entries if entry.changed), {}).items():
        text = f"{name} = {sent:g} was sent, and the server answers that it used {echoed:g} ({where})"
        notes.append(warning("changed parameter", text, subject=f"{where} {name}"))
    return notes


def fault_notes(entries: Sequence[LoggedRequest], where: str) -> list[Note]:
    """Warn about answers that contradict themselves. Their wrong counts of speculation are in no figure."""
    if not (faulty := [entry for entry in entries if entry.faults]):
        return []
    first = (faulty[0].faults or [""])[0]
    text = f"{len(faulty)} of {len(entries)} answers contradict themselves ({where}), the first: {first}"
    return [warning("server fault", text, subject=where)]


def counter_notes(readings: Iterable[Counters | None], where: str) -> list[Note]:
    """Warn about readings of counters that are no counts, fell, or contradict each other. They are in no figure."""
    known = [reading for reading in readings if reading is not None]
    if not (faulty := [reading.fault for reading in known if reading.fault]):
        return []
    text = f"{len(faulty)} of {len(known)} readings of the counters of {where} are wrong, the first: {faulty[0]}"
    return [warning("faulty counters", text, subject=where)]


def id_notes(entries: Sequence[LoggedRequest], description: Description, where: str) -> list[Note]:
    """Warn about answers without the token ids that this kind of server returns. Answers to chats may have none."""
    missing = sum(entry.tokens is None and entry.count > 0 for entry in entries)
    if not missing or not description.has_ids:
        return []
    text = (
        f"{missing} of {len(entries)} answers have no token ids ({where}), so tokens are counted by the server's usage, or by"
        " the pieces of text that arrive"
    )
    return [warning("missing token ids", text, subject=where, help="a newer version of the server")]


def cache_notes(entries: Sequence[LoggedRequest], where: str) -> list[Note]:
    """Warn about prompts that the server read from its prefix cache."""
    if not (hits := sum(bool(entry.cached_tokens) for entry in entries)):
        return []
    text = f"{hits} of {len(entries)} prompts were read from a prefix cache ({where})"
    return [warning("cache hits", text, subject=where)]


def acceptance_notes(counts: SpeculationCounts | None, where: str) -> list[Note]:
    """Warn if no drafted token was accepted, or all."""
    if counts is None or (counts.drafted or 0) < FEWEST_DRAFTED or counts.accepted not in (0, counts.drafted):
        return []
    share = "none" if counts.accepted == 0 else "all"
    return [warning("acceptance", f"{share} of {counts.drafted} drafted tokens were accepted ({where})", subject=where)]
