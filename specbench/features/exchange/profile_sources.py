"""Profiles of runs, servers, NVIDIA's files, saved /metrics pages, AIPerf's summaries and records by request."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from specbench.analysis import speculation_profile
from specbench.analysis.acceptance_profile import AcceptanceProfile, Drafts, of_lengths
from specbench.analysis.method_records import Records, complete, rounds_of
from specbench.analysis.run_summary import MethodSummary, RunSummary
from specbench.analysis.summary import summary_of
from specbench.config.pair import HeadKind
from specbench.errors import ConfigError
from specbench.features.exchange import aiperf_summary, request_records
from specbench.features.servers.backends.answers import MalformedAnswer
from specbench.features.servers.backends.backend import metrics_of
from specbench.features.servers.endpoint import BACKENDS
from specbench.features.servers.load.server_run import ServerRun
from specbench.features.servers.served import SpeculationCounts
from specbench.features.servers.served_results import results_in
from specbench.files import read_text
from specbench.runs.run_folder import read, runs_in

METHODS = {  # proposers and kinds of servers, as NVIDIA's files name them
    "model": "draft_model", "draft-simple": "draft_model", "pld": "ngram",
}  # fmt: skip


def is_profile(path: Path) -> bool:
    """Return whether a file is an acceptance profile of another tool."""
    if not path.is_file():
        return False
    try:
        text = read_text(path)
    except (ConfigError, OSError):
        return False
    table = speculation_profile.parsed(text)
    is_profile = speculation_profile.is_speculation_profile(table) or aiperf_summary.is_summary(table)
    return is_profile or "# TYPE " in text or request_records.has_records(text)


def profiles_of(path: Path) -> list[AcceptanceProfile]:
    """Return the profiles in a file, in a run folder, or in results of servers. Raises ConfigError if there are none."""
    if path.is_file():
        text = read_text(path)
        table = speculation_profile.parsed(text)
        if speculation_profile.is_speculation_profile(table):
            return [speculation_profile.read(text, str(path))]
        if aiperf_summary.is_summary(table):
            return [aiperf_summary.read(table, str(path))]
        if request_records.has_records(text):
            return [request_records.read(text, str(path))]
        return [of_counters(_counted(text, path), str(path))]
    found = [profile for folder in runs_in(path) for profile in of_run(folder)]
    found += [profile for result in results_in(path) if isinstance(result, ServerRun) for profile in of_server(result)]
    if not found:
        raise ConfigError(f"{path} contains no acceptance of drafts")
    return found


def of_run(folder: Path) -> Iterator[AcceptanceProfile]:
    """Yield the profile of each method of a run that drafts chains, and whose rounds all end with a token of the target."""
    summary, records = summary_of(folder), list(read(folder))
    for row in summary.measured_methods:
        rows, theory = complete(records, row.method), summary.traits(row).theory
        rounds = list(rounds_of(rows))
        drafted = max((entry.drafted for entry in rounds), default=0)
        is_deferred = theory is not None and theory.drafter_scores and theory.bonus != "exact"
        without = is_deferred or (theory is not None and theory.bonus == "none")
        if drafted and not without and not any(entry.siblings or entry.untested for entry in rounds):
            yield _of_method(summary, row, rows, drafted)


def _of_method(summary: RunSummary, row: MethodSummary, rows: Records, drafted: int) -> AcceptanceProfile:
    lengths = Counter(entry.accepted + 1 for entry in rounds_of(rows))
    theory = summary.traits(row).theory
    is_fixed = theory is not None and theory.formula in ("speculation", "block")  # no stop rule
    spec, roles = summary.spec.methods[row.method], summary.traits(row).roles
    proposer = spec.options.get("proposer")
    name = str(proposer.get("name", "")) if isinstance(proposer, dict) else spec.preset
    head = summary.heads.get(str(proposer.get("head", ""))) if isinstance(proposer, dict) else None
    if head:
        name = "eagle1" if head.kind == HeadKind.eagle else head.kind
    method = METHODS.get(name, name)
    rejection = spec.options.get("rejection")
    rule = str(rejection["name"]) if isinstance(rejection, dict) else "token"
    models = {role: summary.models[role].source for role in roles if role in summary.models}
    decoding = summary.decoding
    return of_lengths(
        lengths, drafted, f"{summary.folder} ({row.method})",
        method=method, target=next(reversed(models.values()), ""),
        draft=head.source if head else next(iter(models.values()), "") if len(models) > 1 else "",
        drafts=_drafts(method) if is_fixed else Drafts.adaptive,
        verification="block" if rule == "block" else "longest_prefix",
        conditions={
            "task": summary.task, "temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p,
            "max_new_tokens": decoding.max_new_tokens, "prompts": len({record.prompt for record in rows}),
            "engine": f"specbench {summary.spec.engine}", "rejection rule": rule,
            "lossless": spec.lossless, "rounds cut by the end of an output": "included",
        },
    )  # fmt: skip


def _drafts(method: str, other: Drafts = Drafts.fixed) -> Drafts:
    """Return the kind of a method's drafts, `other` if the method is no chain."""
    return Drafts.chain if method in speculation_profile.CHAIN_METHODS else other


def of_server(run: ServerRun) -> Iterator[AcceptanceProfile]:
    """Yield the profile of each level of a server run whose server reports acceptance by position."""
    method = run.on.speculation.method
    for level in run.levels:
        counts = level.acceptance.counts
        if counts is not None and counts.shares_by_position:
            profile = of_counters(
                counts, f"{run.name}, concurrency {level.concurrency}", METHODS.get(method, method), run.on.weights,
                run.on.speculation.draft,
            )  # fmt: skip
            conditions = {"task": run.load.task, "concurrency": level.concurrency, **asdict(run.load.sampling)}
            yield replace(profile, drafts=_drafts(profile.method, Drafts.unknown), conditions=conditions)


def of_counters(
    counts: SpeculationCounts, source: str, method: str = "", target: str = "", draft: str = ""
) -> AcceptanceProfile:
    """Return the profile of a server's counters. Raises ConfigError if they do not agree with each other."""
    by, rounds = counts.by_position or (), counts.rounds or 0
    if not by or not rounds:
        raise ConfigError(f"{source}: there are no counters of accepted tokens by position")
    if sum(by) != counts.accepted:
        raise ConfigError(f"{source}: {counts.accepted} tokens were accepted, and {sum(by)} by position")
    return AcceptanceProfile(
        source=source, survival=tuple(count / rounds for count in by), rounds=rounds, method=method, target=target,
        draft=draft,
    )  # fmt: skip


def _counted(text: str, path: Path) -> SpeculationCounts:
    """Return the counters in a saved /metrics page of a known server."""
    samples = metrics_of(text)
    for backend in BACKENDS:
        if not backend.metrics_prefix:
            continue
        try:
            counts = backend.read_counters(samples).speculation
        except MalformedAnswer as error:
            raise ConfigError(f"{path}: {error}") from None
        if counts is not None:
            return counts
    raise ConfigError(f"{path}: there are no counters of speculation; known: {_known()}")


def _known() -> str:
    return ", ".join(backend.name for backend in BACKENDS if backend.metrics_prefix)
