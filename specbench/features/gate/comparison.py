"""Comparison of BASE with NEW, run by run and method by method: regressions, improvements, and what is not comparable.

The verdicts distinguish a method that decodes differently (*acceptance changed*, *decoding changed*), one that decodes the
same in another time (*overhead changed*), and a baseline that is slower relative to the anchor, the decoding of transformers
(*engine changed*). The latter would not be visible in speedups over that baseline.
"""

from collections.abc import Sequence

from specbench.features.gate import decoding_checks as checks
from specbench.features.gate.changes import Comparable, judge, ratio
from specbench.features.gate.decoding_checks import effect, shared
from specbench.features.gate.run_differences import _setting_of, changed_settings, differences, replaced_drafts, tables
from specbench.features.gate.snapshot import GenerationSummary, MeasuredRun
from specbench.features.gate.verdict import Finding, GateLimits, GateVerdict, Quantity, Status, sides
from specbench.machine.hardware import LIBRARIES, TIMING

ANCHOR = "hf-generate"
EXACT = (
    "cpu",
    "instructions",
    "kernels",
    "threads",
    *LIBRARIES,
)  # equal: greedy or sampled, a CPU computes the same bits

DECIDED = (Status.regression, Status.improved, Status.same)
Aspect = tuple[str, Finding]


def compare(base: list[MeasuredRun], new: list[MeasuredRun], limits: GateLimits) -> list[GateVerdict]:
    """Return verdicts on every run of BASE. Runs that are only in NEW are ignored."""
    out = []
    for run, nearest in zip(base, _pair_runs(base, new), strict=True):
        if nearest is None:
            present = "; ".join(dict.fromkeys(other.name for other in new)) or "nothing"
            why = f"NEW has no run of this pair and task with baseline {run.spec.baseline}; it has {present}"
            if any(_setting_of(other) == _setting_of(run) for other in new):
                why = "each run of this pair and task in NEW is compared with another run of BASE"
            out.append(
                GateVerdict(run.name, "", "comparability", Status.incomparable, "not measured", why, "not measured")
            )
        elif incomplete := _incomplete(run, nearest):
            short = "incomplete"
            out.append(
                GateVerdict(run.name, "", "comparability", Status.incomparable, short, "; ".join(incomplete), short)
            )
        elif reasons := differences(run, nearest):
            short, why = "other conditions", "; ".join(reasons)
            out.append(GateVerdict(run.name, "", "comparability", Status.incomparable, short, why, short))
        else:
            for method in run.spec.methods:
                if method != ANCHOR:
                    out += _of_method(run, nearest, method, limits)
    return out


def _pair_runs(base: list[MeasuredRun], new: list[MeasuredRun]) -> list[MeasuredRun | None]:
    """Return for each run of BASE the most similar run of NEW with its pair, task and baseline; None if none is left.

    Each run of NEW is used once.
    """
    pairs = sorted(
        (_distance(run, other), i, j)
        for i, run in enumerate(base)
        for j, other in enumerate(new)
        if _setting_of(other) == _setting_of(run)
    )
    partners: dict[int, int] = {}
    for _, i, j in pairs:
        if i not in partners and j not in partners.values():
            partners[i] = j
    return [new[partners[i]] if i in partners else None for i in range(len(base))]


def _distance(base: MeasuredRun, new: MeasuredRun) -> tuple[int, int, int]:
    """Return how different two runs are: differences that prevent a comparison, missing methods, changed settings."""
    a, b = base.spec.methods, new.spec.methods
    changed = sum(len(changed_settings(a[name].options, b[name].options)) for name in a if name in b)
    return len(differences(base, new)) + len(replaced_drafts(base, new)), _lacking(base, new), changed


def _incomplete(base: MeasuredRun, new: MeasuredRun) -> list[str]:
    """Return the reasons why one of two runs is incomplete, with counts. Empty if both are complete."""
    return [f"{side}: {why}" for side, run in (("BASE", base), ("NEW", new)) for why in run.problems]


def _lacking(base: MeasuredRun, new: MeasuredRun) -> int:
    """Return the number of methods of BASE that are not in NEW with the same settings."""
    return sum(new.spec.methods.get(name) != method for name, method in base.spec.methods.items())


def _of_method(base: MeasuredRun, new: MeasuredRun, method: str, limits: GateLimits) -> list[GateVerdict]:
    """Return the verdicts on one method: decoding, quality, and speed, for the baseline relative to the anchor."""

    def verdict(aspect: str, finding: Finding) -> GateVerdict:
        return GateVerdict(base.name, method, aspect, *finding)

    other = new.spec.methods.get(method)
    changes = [] if other is None else changed_settings(base.spec.methods[method].options, other.options)
    if other is None or (changes and not limits.across_config):
        return [verdict("comparability", _not_comparable(changes))]
    if new.failed[method] > base.failed[method]:
        why = (
            f"{new.failed[method]} generations failed, {base.failed[method]} before; `error` in samples.jsonl says why"
        )
        return [verdict("decoding", Finding(Status.regression, "generations failed", why, "failed"))]
    timed = [] if limits.counters_only else _timed(base, new, method, limits)
    replaced = replaced_drafts(base, new)
    if parts := [part for part in _parts_of(base, method) if part in replaced]:
        return [
            verdict(aspect, finding) for aspect, finding in _with_other_draft(base, new, method, parts, limits, timed)
        ]
    inexact = f"compared with tolerance (settings changed: {', '.join(changes)})" if changes else _inexact(base, new)
    rows = base.generations[method], new.generations[method]
    decoded = checks.decoding(*rows, inexact, limits, bool(changes))
    if inexact and not changes and base.spec.device == new.spec.device == "cpu":
        decoded = checks.other_tokens(*rows, decoded)
    if decoded.status in (Status.regression, Status.improved):
        cost = "; ".join(finding.detail for _, finding in timed if finding.status is not Status.skipped)
        decoded = decoded._replace(detail=f"{decoded.detail}; {cost}" if cost else decoded.detail)
        timed = [(aspect, found) for aspect, found in timed if found.status is not decoded.status]  # reported already
    if text := ", ".join(changes):
        detail = f"{text}; {decoded.detail}".removesuffix("; ")
        decoded = decoded._replace(detail=detail, short=f"{decoded.short} ({text})")
    scored = [checks.quality(base, new, method, metric["name"], limits) for metric in base.metrics]
    return [
        verdict("decoding", decoded),
        *(verdict("quality", finding) for finding in scored if finding),
        *(verdict(aspect, finding) for aspect, finding in timed),
    ]


def _not_comparable(changes: Sequence[str]) -> Finding:
    """Return the finding on a method that NEW measured with other settings, or not at all."""
    why, short = "not measured in NEW", "not measured"
    if changes:
        why = f"{'; '.join(changes)}; help: --across-config compares them anyway"
        short = f"changed: {', '.join(changes)}"
    return Finding(Status.incomparable, "other settings", why, short)


def _with_other_draft(
    base: MeasuredRun,
    new: MeasuredRun,
    method: str,
    parts: list[str],
    limits: GateLimits,
    timed: list[tuple[str, Finding]],
) -> list[tuple[str, Finding]]:
    """Return the findings on a method whose drafts come from another model or head. Only a lossless one can be compared."""
    replaced = replaced_drafts(base, new)
    why = "; ".join(change for part in parts for change in replaced[part])
    if not base.spec.methods[method].lossless or not new.spec.methods[method].lossless:
        detail = f"{why}; only the drafts of a lossless method can be compared"
        return [("comparability", Finding(Status.incomparable, "other draft", detail, why))]
    findings = _draft_findings(base, new, method, parts, limits, [finding for _, finding in timed])
    scored = [checks.quality(base, new, method, metric["name"], limits) for metric in base.metrics]
    if (inexact := _inexact(base, new)) and findings[0][1].status is Status.regression:
        undecided = findings[0][1]._replace(status=Status.inconclusive, detail=f"{findings[0][1].detail}; {inexact}")
        findings[0] = ("decoding", undecided)
    explained = [(aspect, finding._replace(detail=f"{finding.detail}; {why}")) for aspect, finding in findings]
    titles = {Status.regression: "slower with the new draft", Status.improved: "faster with the new draft"}
    speeds = [(aspect, finding._replace(title=titles.get(finding.status, finding.title))) for aspect, finding in timed]
    return [*explained, *(("quality", finding) for finding in scored if finding), *speeds]


def _draft_findings(
    base: MeasuredRun, new: MeasuredRun, method: str, parts: Sequence[str], limits: GateLimits, timed: Sequence[Finding]
) -> list[Aspect]:
    """Return the findings on outputs, acceptance and cost of a lossless method whose draft model or head was replaced.

    Its speed is judged as for other methods. A lower acceptance or a higher cost alone is no regression, since a cheaper
    draft can make up for rejected tokens, and a better one for its cost. `parts` are the replaced models and heads, `timed`
    the findings on speed.
    """
    a, b = shared(base.generations[method], new.generations[method])
    if not a:
        return [("decoding", Finding(Status.incomparable, "nothing to compare", "no generation is on both sides", "–"))]
    is_timed = any(finding.status in DECIDED for finding in timed)
    findings = [("decoding", _draft_outputs(base, a, b)), ("acceptance", _draft_acceptance(a, b, limits, is_timed))]
    return findings if limits.counters_only else [*findings, ("cost", _draft_cost(base, new, method, parts, is_timed))]


def _draft_outputs(base: MeasuredRun, a: Sequence[GenerationSummary], b: Sequence[GenerationSummary]) -> Finding:
    """Return whether the outputs are equal, which a lossless method guarantees at T = 0."""
    if base.spec.decoding.temperature > 0.0:
        detail = f"{len(a)} generations, sampled with another draft; their distribution is the target's"
        return Finding(Status.same, "sampled outputs", detail, "sampled")
    ids = sum(x.ids != y.ids for x, y in zip(a, b, strict=True))
    differ = f"{ids} of {len(a)} generations have different tokens at T = 0, although the method is lossless"
    if ids:
        return Finding(Status.regression, "decoding changed", differ, f"{ids} of {len(a)} outputs have other tokens")
    return Finding(Status.same, "same outputs", f"{len(a)} generations, token for token", "same outputs")


def _draft_acceptance(
    a: Sequence[GenerationSummary], b: Sequence[GenerationSummary], limits: GateLimits, is_timed: bool
) -> Finding:
    """Return the finding on the acceptance rate. A loss alone is no regression."""
    before, after = (
        Comparable(
            name="acceptance rate",
            quantity=Quantity.acceptance,
            samples=ratio([(row.accepted, row.tested, row.prompt) for row in side]),
            decides=False,
            is_timed=is_timed,
            words=("lower acceptance", "higher acceptance", "same acceptance"),
        )
        for side in (a, b)
    )
    return judge(before, after, limits)._replace(short=effect(a, b))


def _draft_cost(base: MeasuredRun, new: MeasuredRun, method: str, parts: Sequence[str], is_timed: bool) -> Finding:
    """Return the finding on the forward cost of the replaced parts, relative to the baseline's first model."""
    (target, *_) = base.spec.methods[base.spec.baseline].traits.roles
    texts = []
    for part in parts:
        sides = [(_forward(run, method, part), _forward(run, method, target)) for run in (base, new)]
        if not all(value for side in sides for value in side):
            return Finding(
                Status.skipped, "no times of forwards", f"{part} has no recorded times on one side", "no times"
            )
        (draft, over), (draft_after, over_after) = sides
        texts.append(
            f"{part} forward {1e3 * draft:.3f} → {1e3 * draft_after:.3f} ms,"
            f" cost ratio {draft / over:.3f} → {draft_after / over_after:.3f}"
        )
    text = ", ".join(texts)
    if not is_timed:
        return Finding(Status.skipped, "other conditions for cost", f"{text}; times are not comparable", text)
    return Finding(Status.same, "cost of a draft forward", f"{text}; the speed decides", text)


def _forward(run: MeasuredRun, method: str, role: str) -> float:
    """Return the mean seconds of a decoding forward of a model or head; 0 if none was recorded."""
    forwards, seconds = run.costs.get(method, {}).get(role, (0, 0.0))
    return seconds / forwards if forwards else 0.0


def _parts_of(run: MeasuredRun, method: str) -> tuple[str, ...]:
    """Return the models and heads that a method reads."""
    traits = run.spec.methods[method].traits
    return *traits.roles, *traits.heads


def _timed(base: MeasuredRun, new: MeasuredRun, method: str, limits: GateLimits) -> list[tuple[str, Finding]]:
    """Return the finding on a method's time relative to the baseline, or the baseline's relative to the anchor."""
    is_baseline = method == base.spec.baseline
    aspect, over = ("engine", ANCHOR) if is_baseline else ("speed", base.spec.baseline)
    why = _no_speed(base, new, over)
    if why:
        status = Status.incomparable if limits.require_speed else Status.skipped
        ratios = [checks.within(run.sessions, method, over) for run in (base, new) if run.sessions]
        if len(ratios) == 2 and None not in ratios:
            why += f"; within each run, {method} over {over} is {ratios[0]:.2f}x and {ratios[1]:.2f}x"
        return [(aspect, Finding(status, f"{aspect} not compared", why, "not comparable"))]
    finding = checks.speed(base.sessions, new.sessions, method, over, limits)
    if finding.status in (Status.regression, Status.improved):
        finding = finding._replace(title="engine changed" if is_baseline else "overhead changed")
    return [(aspect, finding)]


def _no_speed(base: MeasuredRun, new: MeasuredRun, over: str) -> str:
    """Return why times cannot be compared; empty if they can."""
    if any(over not in run.spec.methods for run in (base, new)):
        role = "the reference for the engine" if over == ANCHOR else "the baseline"
        return f"{over}, {role}, was not measured in both runs" + (f"; help: add -m {ANCHOR}" if over == ANCHOR else "")
    if not base.sessions or not new.sessions:
        return "one side has no timing"
    devices = [run.spec.device for run in (base, new)]
    conditions = [{key: run.environment.get(key, "") for key in TIMING} for run in (base, new)]
    other = tables(
        "", *({key: "unknown" if value == "" else value for key, value in side.items()} for side in conditions)
    )
    return "; ".join(other + ([f"device: {sides(*devices)}"] if devices[0] != devices[1] else []))


def _inexact(base: MeasuredRun, new: MeasuredRun) -> str:
    """Return why bitwise equal results cannot be required; empty if they can."""
    if base.spec.device != "cpu" or not base.environment.get("instructions"):
        return "compared with tolerance (not on a known CPU)"
    other = tables("", *({key: run.environment.get(key) for key in EXACT} for run in (base, new)))
    other += tables("engine", *({"name": run.spec.engine, "device": run.spec.device} for run in (base, new)))
    return f"compared with tolerance ({'; '.join(other)})" if other else ""


# The models, heads and settings of a measurement, and how two of them differ
