"""Notes and warnings on a measurement, for below its tables."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from specbench.analysis.metric import metric_of
from specbench.analysis.number_format import PERCENT
from specbench.analysis.run_summary import RunSummary
from specbench.config.pair import HeadKind
from specbench.config.shard import Shard
from specbench.errors import short_repr
from specbench.kernels import TORCH
from specbench.machine.hardware import Environment, bandwidth_of
from specbench.note import Level, Note, warning, warnings_of
from specbench.reporting.setup_lines import costs_of, counted, sampling_of
from specbench.runs.run_folder import listed

LEAST_BANDWIDTH = 0.5  # share of the memory bandwidth below which a baseline gets a warning, if the conclusion has none
MOST_CONDITIONS = 3  # sets of conditions above a short report of several runs
MOST_WARNINGS = 5  # lines of warnings that follow a short report
MOST_FOLDERS = 3  # that a command names
MOST_METHODS = 3  # methods that a warning names if it is about many
LENGTH_CUTS = "cut_by_length"
WINDOW_CUTS = "cut by window"  # a kind of note
LIMITS = {  # warnings with a value for each method, by column: the text, and the value at which it is shown
    LENGTH_CUTS: ("outputs cut by the length limit", 0.05),
    "cut_prompts": ("truncated prompts", 0.0),
    "drift": ("drift of the speed within the run; other programs may use the machine", 0.1),
}
INTERVALS = (
    "Intervals are 95 %, by Student's t over prompts and repeats; Wilson's if all scores are 0 or all are 1; none for fewer"
    " than five prompts. Theory assumes that verifying a block costs as much as decoding one token. Corrected theory uses the"
    " measured cost."
)
CONDITIONS, SHARD, SAMPLED, PARALLEL = "conditions", "shard", "sampled lengths", "parallel models"  # kinds of notes
TOKENIZERS = "tokenizers differ"


def notes(summary: RunSummary) -> list[Note]:
    """Return the conditions of a run, and warnings about it."""
    sections = (_conditions, _models, _methods, _completeness, _comparability, _scores, _limits)
    return [note for section in sections for note in section(summary)]


def _conditions(summary: RunSummary) -> Iterator[Note]:
    decoding, data, env = summary.decoding, summary.data, summary.environment
    length = f"fixed length of {decoding.max_new_tokens}" if decoding.ignore_eos else "natural stop"
    dtypes = " ".join(sorted({model.dtype for model in summary.models.values()}))
    placed = f" ({summary.placement})" if summary.placement else ""
    prompts, repeats = counted(data.samples, "prompt"), counted(decoding.repeats, "repeat")
    changed = f"changed: {'; '.join(summary.spec.changes)}; " if summary.spec.changes else ""
    yield Note(
        CONDITIONS,
        f"{prompts} ({data.source}) x {repeats}, {sampling_of(summary)}, {length}, seed {decoding.seed}; {changed}engine"
        f" {summary.spec.engine}{_kernels(summary)} on {summary.spec.device} {dtypes}{placed}, {summary.machine},"
        f" {counted(env['threads'], 'thread')}{_reason(env)}{f'; {costs}' if (costs := costs_of(summary)) else ''}",
    )
    if summary.imported:
        yield Note("imported", f"imported from {summary.imported}, not measured here")
    if env.get("untimed"):
        yield warning("untimed", "untimed: other runs shared the device, so there are no speeds")
    if _kernel_rule(summary) == TORCH:
        text = "the lean engine ran without its CPU kernels, so decoding was slower"
        yield warning("no kernels", text, help="specbench doctor")
    yield Note("intervals", INTERVALS)
    if summary.captured.graphs:
        yield Note(
            "graphs",
            f"{summary.captured.graphs} CUDA graphs were captured in {summary.captured.seconds:.1f} s, outside all timings.",
        )


def _kernels(summary: RunSummary) -> str:
    """Return the kernels of the lean engine on a CPU, in parentheses; empty if none ran or if they were not recorded."""
    rule = _kernel_rule(summary)
    return f" ({rule})" if rule and rule != TORCH else ""


def _kernel_rule(summary: RunSummary) -> str:
    on_cpu = summary.spec.device == "cpu" and "lean" in summary.spec.engine
    paneled = any(model.dtype in ("float32", "bfloat16") for model in summary.models.values())
    has_kernels = "x86_64" in summary.environment["os"]  # there are none for other processors
    return summary.environment.get("kernels", "") if on_cpu and paneled and has_kernels else ""


def _reason(environment: Environment) -> str:
    """Return why a run had its number of threads, in parentheses; empty for runs that do not record it."""
    reason = environment.get("threads_reason", "")
    return f" ({reason})" if reason else ""


def _models(summary: RunSummary) -> Iterator[Note]:
    if summary.simulated:
        yield _not_real(summary)
    for role, words in summary.environment.get("translations", {}).items():
        yield from _tokenizers_differ(summary, role, words)
        yield from _nothing_drafted(summary, role)
    for name, head in summary.heads.items():
        data = summary.data
        unseen = data.samples <= head.skipped and not data.drawn and not data.shard
        if data.sha256 in head.trained_on and not unseen:
            skipped = f", except the first {counted(head.skipped, 'row')}" if head.skipped else ""
            yield warning("trained on the data", f"head {name} was trained on this data set{skipped}", subject=name)


def _tokenizers_differ(summary: RunSummary, role: str, words: str) -> Iterator[Note]:
    """Yield what a draft model with another tokenizer cannot draft."""
    shares = {row.label: share for row in summary.methods if (share := row.number("undraftable")) is not None}
    outside = {row.method: mass for row in summary.methods if (mass := row.number("outside_vocabulary")) is not None}
    undrafted = ", ".join(f"{PERCENT.number(share)} of the tokens of {label}" for label, share in shares.items())
    text = f"The model {role} has another tokenizer than the target: {words}"
    text += f"; {undrafted} can never be drafted" if undrafted else ""
    yield Note(TOKENIZERS, text, subject=role, values=outside)


def _methods(summary: RunSummary) -> Iterator[Note]:
    rows = summary.methods
    if any(row.value("predicted_distance") is not None for row in rows):
        text = "predicted distance from target: Theorem 1 over the head's own test texts (docs/heads.md)."
        yield Note("predicted distance", text)
    if any(head.kind == HeadKind.eagle for head in summary.heads.values()):
        yield Note(
            "theory of heads",
            "Theory leaves out the tokens that an EAGLE head reads again, and the forwards in which a middle model catches up"
            " for it.",
        )
    base = next((row for row in rows if row.method == summary.baseline), None)
    bound, slow = base.number("bound_share") if base else None, summary.slow_baseline
    in_conclusion = slow and "bandwidth" in slow.reasons and any(row.speedup for row in rows)
    if base and bound is not None and bound < LEAST_BANDWIDTH and not in_conclusion:
        yield warning(
            "bandwidth",
            f"{base.method} reaches {metric_of('bound_share').format.text(bound)} of the measured"
            f" {bandwidth_of(summary.environment).kind} bandwidth; a faster engine would reduce the speedups over it",
            subject=base.method,
            values={base.method: bound},
        )
    yield from _parallel_note(summary)
    if any(row.method.startswith("hf-") for row in rows):
        yield Note("transformers", "hf-*: run by transformers itself, regardless of --engine.")


def _completeness(summary: RunSummary) -> Iterator[Note]:
    data, rows = summary.data, summary.methods
    failed = sum(row.failed for row in rows)
    if data.shard:
        shard = Shard.of(data.shard)
        yield warning(
            SHARD,
            f"shard {shard.index} of {shard.count}; specbench run --shards {shard.count} measures all parts and combines"
            " them",
        )
    if data.samples < data.total and data.source != "synthetic":
        part = f"{data.samples} of {counted(data.total, 'sample')}"
        if data.revision:
            yield warning("part of the data", f"{part}: not comparable with published scores")
        else:
            yield Note("part of the data", f"{part}.")
    if failed:
        first = next(row.first_error for row in rows if row.first_error)
        verb = "was" if failed == 1 else "were"
        yield warning(
            "failed",
            f"{counted(failed, 'generation')} failed and {verb} not timed (`error` in samples.jsonl). The first: {first}",
            values={row.method: float(row.failed) for row in rows if row.failed},
        )
    if summary.problems:
        problems = f"{counted(len(summary.problems), 'line')} of samples.jsonl not counted: {listed(summary.problems)}"
        yield warning("damaged lines", problems)
    if not summary.complete:
        done = sum(row.generations + row.failed for row in rows)
        expected = len(rows) * data.samples * summary.decoding.repeats
        yield warning("incomplete", f"incomplete: {done} of {expected} generations; the same command resumes the run")


def _comparability(summary: RunSummary) -> Iterator[Note]:
    decoding = summary.decoding
    if summary.data.left_out:
        rows = [f"{count} ({reason})" for reason, count in summary.data.left_out.items()]
        count = sum(summary.data.left_out.values())
        verb = "was" if count == 1 else "were"
        yield warning("rows left out", f"{counted(count, 'row')} {verb} left out: {', '.join(rows)}")
    if without := summary.data.without_system:
        text = f"the system prompts of {counted(without, 'dialogue')} were left out"
        yield warning("system prompts left out", text, help="docs/tasks.md")
    yield from _generation_configs(summary)
    yield from _stored_weights(summary)
    yield from _costs(summary)
    if summary.data.later_turns and decoding.temperature > 0:
        text = "Later turns continue each method's own answers, so their prompts differ between methods."
        yield Note("later turns", text)
    if decoding.temperature > 0 and not decoding.ignore_eos:
        yield Note(SAMPLED, "Sampled outputs differ in length; --ignore-eos compares speeds at a fixed length.")


def _nothing_drafted(summary: RunSummary, role: str) -> Iterator[Note]:
    """Yield a warning for each method without a tested draft token, if a model with another tokenizer drafts for it."""
    for row in summary.methods:
        traits, can_draft = summary.traits(row), row.tokens > row.generations - row.failed > 0
        if role in traits.roles and traits.draft_length and can_draft and row.acceptance_rate is None:
            text = f"no draft token of {row.method} was tested: {role} may be unable to encode the prompts"
            yield warning("nothing drafted", text, help="a draft with the target's special tokens", subject=row.method)


def _stored_weights(summary: RunSummary) -> Iterator[Note]:
    """Yield how the weights of checkpoints are stored that are quantized already."""
    for role, model in summary.spec.pair.models.items():
        if model.stored:
            rounded = "; products round inputs to 8 bits" if model.quantization else "; products do not round inputs"
            yield Note("stored weights", f"{role}: weights are stored as {model.stored}{rounded}", subject=role)


def _costs(summary: RunSummary) -> Iterator[Note]:
    """Yield a note for each model with the cost of a larger one."""
    for role, model in summary.spec.pair.models.items():
        if model.cost:
            answers = f", and answers as {model.source}" if model.weights == "real" else ""
            yield Note("cost", f"{role}: costs as much as {model.cost.label}{answers}", subject=role)


def _generation_configs(summary: RunSummary) -> Iterator[Note]:
    """Yield what the generation configs of the checkpoints set: rules that apply, and keys that do not."""
    for role, model in summary.spec.pair.models.items():
        if model.generation and model.generation.rules:
            text = f"{role}: the generation config sets {_settings(model.generation.rules)}; applied to the logits"
            yield Note("generation config", text, subject=role)
        if model.generation and model.generation.ignored:
            text = f"{role}: the generation config sets {_settings(model.generation.ignored)}; not applied"
            yield warning("generation config", text, subject=role)
    models, decoding = summary.spec.pair.models, summary.decoding
    target = models.get("target") or list(models.values())[-1]
    sampling = target.generation.sampling if target.generation else {}
    used = {"temperature": decoding.temperature, "top_k": decoding.top_k, "top_p": decoding.top_p}
    if any(used[key] != value for key, value in sampling.items()):
        settings = ", ".join(f"{key} = {value:g}" for key, value in sampling.items())
        text = f"the target's generation config samples with {settings}"
        yield Note("sampling of the generation config", text, help="--sampling checkpoint")


def _settings(table: Mapping[str, object]) -> str:
    return ", ".join(f"{key} = {short_repr(value)}" for key, value in table.items())


def _scores(summary: RunSummary) -> Iterator[Note]:
    ignore_eos = summary.decoding.ignore_eos
    if ignore_eos:
        text = "Outputs of a fixed length are not scored; leave out --ignore-eos to measure quality."
        yield Note("not scored", text)
    elif summary.not_executed:
        yield warning(
            "not executed",
            "generated code was not executed, so it has no score",
            help=f"specbench score {summary.folder} --allow-code-execution",
            subject=summary.folder,
        )
    elif not summary.scored:
        text, command = "scores are missing or outdated", f"specbench score {summary.folder}"
        yield warning("not scored", text, help=command, subject=summary.folder)
    version = summary.spec.task.version
    if summary.scored_by not in ("", version):
        text = f"generated under version {version} of the task, scored by version {summary.scored_by}"
        yield warning("scored by another version", text)
    for metric in summary.metrics:
        yield Note("metric", f"{metric['name']}: {metric['signature']}", subject=metric["name"])
        undefined = any(row.quality.get(metric["name"]) is None for row in summary.measured_methods)
        if (
            metric["combine"].startswith("pass@")
            and undefined
            and summary.scored
            and not (ignore_eos or summary.not_executed)
        ):
            generations_needed = metric["name"].partition("@")[2]
            yield warning(
                "too few generations",
                f"{metric['name']} needs at least {generations_needed} generations per prompt",
                help=f"--repeats {generations_needed}, and a temperature above 0",
            )


def _limits(summary: RunSummary) -> Iterator[Note]:
    natural = not summary.decoding.ignore_eos and not summary.spec.task.continues
    for key, (text, least) in LIMITS.items():
        values = {row.method: row.number(key) or 0.0 for row in summary.methods}
        if key == LENGTH_CUTS:
            if not natural:
                continue
            for role in dict.fromkeys(role for row in summary.methods for role in row.window_cuts):
                cut = {row.method: row.window_cuts.get(role, 0.0) for row in summary.methods}
                values = {method: value - cut[method] for method, value in values.items()}
                window = f"outputs cut by the context window of '{role}'"
                yield from _beyond(Note(WINDOW_CUTS, window), key, cut, least)
        yield from _beyond(Note(key, text), key, values, least)


def _beyond(what: Note, key: str, values: Mapping[str, float], least: float) -> Iterator[Note]:
    """Yield a warning with the methods whose value of the column `key` is beyond the limit.

    If these are many, it has the largest values and the number of the others. `what` has its kind and the words before them.
    """
    beyond = {method: value for method, value in values.items() if abs(value) > least}
    texts = {method: metric_of(key).format.text(value) for method, value in beyond.items()}
    if not texts:
        return
    if len(texts) > 2 and len(texts) == len(values) and len(set(texts.values())) == 1:
        listed_methods = f"all methods {next(iter(texts.values()))}"
    else:
        first, more = list(texts), ""
        if len(texts) > MOST_METHODS + 1:
            first = sorted(texts, key=lambda method: -abs(beyond[method]))[:MOST_METHODS]
            more = f" and {len(texts) - MOST_METHODS} more methods"
        listed_methods = ", ".join(f"{method} {texts[method]}" for method in first) + more
    yield replace(what, text=f"{what.text}: {listed_methods}", level=Level.warning, values=beyond)


def _not_real(summary: RunSummary) -> Note:
    """Return a warning on what is simulated, and what that means for the numbers."""
    parts = []
    if summary.simulated.has_dummy_weights:
        parts.append("the weights are random (dummy), so a forward has its real cost and the text is noise")
    if summary.simulated.has_synthetic_logits:
        parts.append("synthetic logits replace the models' logits")
    synthetic = summary.spec.pair.synthetic
    if not synthetic:
        parts.append("acceptance, and with it the speed of methods that draft, has no meaning")
    elif synthetic.rates:
        configured = " and ".join(
            f"of {rate.acceptance:g} for drafts of {role} tested by {', '.join(rate.scorers)} under {rate.method}"
            for role, rate in synthetic.rates.items()
        )
        parts.append(f"a configured acceptance rate {configured}, which determines all other rates")
    return warning("not real", "Not a measurement of these models: " + "; ".join(parts))


def notes_of(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the notes of one run, or the common ones of several."""
    return notes(summaries[0]) if len(summaries) == 1 else common_notes(summaries)


def short_notes(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the conditions of some runs and the first warnings about them. The others are counted."""
    settings = list(dict.fromkeys(next(_conditions(summary)).text for summary in summaries))
    out = [Note(CONDITIONS, text) for text in settings[:MOST_CONDITIONS]]
    if len(settings) > MOST_CONDITIONS:
        others = counted(len(settings) - MOST_CONDITIONS, "more set")
        out.append(Note(CONDITIONS, f"{others} of conditions", help=_full_report(summaries)))
    out += [note for note in notes_of(summaries) if note.kind == TOKENIZERS]
    warnings = warnings_of(notes_of(summaries))
    shown = warnings if len(warnings) <= MOST_WARNINGS else warnings[: MOST_WARNINGS - 1]
    out += shown
    if more := len(warnings) - len(shown):
        out.append(warning("more warnings", counted(more, "more warning"), help=_full_report(summaries)))
    return out


def _full_report(summaries: Sequence[RunSummary]) -> str:
    """Return how to show all tables and notes of these runs."""
    if len(summaries) > MOST_FOLDERS:
        return "specbench report FOLDERS --full"
    return f"specbench report {' '.join(shlex.quote(summary.folder) for summary in summaries)} --full"


def common_notes(summaries: Sequence[RunSummary]) -> list[Note]:
    """Return the notes of a table of several runs: their conditions, then their warnings.

    Notes that are alike (`Note.group`) are one line, with their tasks.
    """
    notes_by_run = [(summary, notes(summary)) for summary in summaries]
    out = [Note(CONDITIONS, text) for text in dict.fromkeys(found[0].text for _, found in notes_by_run)]
    if any(summary.data.source == "synthetic" for summary in summaries):
        text = "Scores on synthetic data are not scores on the task. How each is computed: specbench report FOLDER"
        out.append(Note("synthetic data", text))
    groups: dict[object, list[tuple[Note, str]]] = {}
    for summary, found in notes_by_run:
        for note in found:
            if note.is_warning or note.kind in (SAMPLED, PARALLEL, TOKENIZERS):
                groups.setdefault(note.group, []).append((note, summary.task))
    for alike in groups.values():
        first, tasks = alike[0][0], ", ".join(dict.fromkeys(task for _, task in alike))
        differ = len({str(note) for note, _ in alike}) > 1
        where = f" ({f'{len(alike)} runs, numbers of the first: ' if differ else ''}{tasks})"
        out.append(
            replace(first, help=f"{first.help}{where}") if first.help else replace(first, text=first.text + where)
        )
    return out


def _parallel_note(summary: RunSummary) -> Iterator[Note]:
    """Yield whether a run's parallel models share a device, by their placement; nothing for a run without any."""
    parallel = [spec for spec in summary.spec.methods.values() if spec.options.get("name") == "parallel"]
    devices: dict[str, list[str]] = {}
    for role in dict.fromkeys(role for spec in parallel for role in spec.traits.roles):
        devices.setdefault(_device(summary.models[role].placement or summary.spec.device), []).append(role)
    why = "The slides name traffic between devices as the reason why parallel models are slow"
    if len(devices) == 1:
        yield Note(PARALLEL, f"Parallel models share one device, {next(iter(devices))}. {why}, which this cannot show.")
    elif devices:
        where = "; ".join(f"{', '.join(roles)} on {device}" for device, roles in devices.items())
        yield Note(PARALLEL, f"Parallel models are on {len(devices)} devices: {where}. {why}.")


def _device(name: str) -> str:
    """Return a device's name, the first GPU always as cuda:0."""
    return "cuda:0" if name == "cuda" else name
