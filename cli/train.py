"""`specbench train`: the trained parts of methods: SPRINTER's verifier, SpecDec++'s and DSL's heads, an EAGLE head."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from specbench.cli import params as choices
from specbench.cli.params import HeadKind, known
from specbench.cli.progress import Terminal, interrupted, status
from specbench.config.options import Access
from specbench.errors import ConfigError
from specbench.training.trainer import Training, require_known

TEXTS = {HeadKind.sprinter: 600, HeadKind.specdec: 600, HeadKind.dsl: 600, HeadKind.eagle: 0}  # 0 is all there are

FEATURES, TAU = "state", 1.2  # the paper's, and its best for GPT-Neo


def train(
    kind: Annotated[HeadKind, typer.Argument(help="Which head.")],
    pair: choices.Pair = "tiny",
    task: Annotated[
        list[str] | None,
        typer.Option("--task", "-t", help="A task; repeat for several. [the pair's]", autocompletion=known("task")),
    ] = None,
    data: Annotated[
        str, typer.Option(help="hub or synthetic, whose training split is taken, or a JSONL file. [the pair's]")
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="Texts to train on; 0 is all. [by the head]")
    ] = None,
    skip: Annotated[int, typer.Option(help="Leave out the first N rows of each task: to measure on them later.")] = 0,
    base: Annotated[str, typer.Option(help="The model whose states are read. [draft; of an EAGLE head target]")] = "",
    features: Annotated[
        str, typer.Option(help="sprinter: what the verifier sees, e.g. state or state+q+entropy.")
    ] = FEATURES,
    tau: Annotated[float, typer.Option(help="sprinter: acceptable is q(x) <= tau p(x).")] = TAU,
    seed: Annotated[int, typer.Option(help="Of texts, draws, splits and weights.")] = 0,
    device: choices.OnDevice = choices.Device.auto,
    dtype: choices.InDtype = choices.Dtype.auto,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The head's folder. [heads/PAIR/KIND]")] = None,
    rows: Annotated[Path | None, typer.Option(help="Where what the models said is kept. [OUT/collected]")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", "-s", help="Override a key: recipe.rate=1e-3, task.shots=0.")
    ] = None,
    wait: choices.Wait = False,
    break_lock: choices.BreakLock = False,
) -> None:
    """Train a head for a pair, and measure it on unseen texts.

    What the models say of the texts is collected first, into the head's folder; an interrupted training goes on from there.
    """
    from specbench.config.options import Options, parse_override

    overrides = tuple(map(parse_override, set_ or []))
    own = [(key.removeprefix("recipe."), value) for key, value in overrides if key.startswith("recipe.")]
    options = Options(
        data=data, device=device, dtype=dtype, overrides=tuple(o for o in overrides if not o[0].startswith("recipe."))
    )
    count = TEXTS[kind] if limit is None else limit
    base = base or ("target" if kind == HeadKind.eagle else "draft")
    access = Access(wait=wait, break_lock=break_lock)
    try:
        trained(kind, pair, task or [], options, count, skip, base, features, tau, seed, dict(own), out, rows, access)
    except KeyboardInterrupt:
        interrupted()


def trained(
    kind: HeadKind,
    pair_name: str,
    task_names: list[str],
    options: Any,
    count: int,
    skip: int,
    base: str,
    features: str,
    tau: float,
    seed: int,
    recipe: dict[str, Any],
    out: Path | None,
    kept: Path | None,
    access: Access,
) -> Path:
    """Everything that `train` does behind its options. Returns the head's folder."""
    import specbench.tasks  # noqa: F401  (registers the tasks)
    from specbench.experiment import run_spec as cells
    from specbench.files import write
    from specbench.models import loader as models
    from specbench.models.heads import Provenance
    from specbench.models.resolve import device_of, find
    from specbench.runs.locking import locked
    from specbench.training import texts as texts_

    found_pair, pair = cells.read_pair(pair_name, options)
    roles = (base,) if kind == HeadKind.eagle else (base, "target")
    for role in roles:
        pair.group(role)
    names = task_names or list(pair.defaults.tasks)
    if not names:
        raise ConfigError("name the tasks to train on: -t TASK")
    tasks = [cells.read_task(name, pair, options) for name in names]
    recipe = pair.defaults.train.get(kind.value, {}) | recipe
    require_known(kind, recipe, features)
    if kind != HeadKind.sprinter and (features, tau) != (FEATURES, TAU):
        raise ConfigError(f"--features and --tau are a verifier's: {kind.value} has neither")
    device = device_of(options.device)
    found = find(pair, roles, found_pair.path.parent, device, options.dtype)
    folder = out or Path("heads") / found_pair.name / (
        kind.value if base in ("draft", "target") else f"{kind.value}-{base}"
    )
    with locked([folder, kept or folder], access):
        with status(f"loading {', '.join(roles)}"):
            loaded = models.load(found, found_pair.path.parent, device)
            texts = texts_.gather(loaded, tasks, cells.source_of(pair, options), count, skip, seed)
        if any(folder.glob("*.safetensors")):
            print(f"{folder} holds a head, which this one replaces; --out keeps both", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        about: dict[str, Any] = {
            "models": {role: each.identity() for role, each in found.items()},
            "texts": texts.sha256,
            "seed": seed,
        }
        about["kind"] = kind.value
        run = Training(kind, loaded, texts, folder, base, features, tau, seed, recipe, about, kept, Terminal())
        head, report = {
            HeadKind.sprinter: run.sprinter, HeadKind.specdec: run.specdec, HeadKind.dsl: run.dsl, HeadKind.eagle: run.eagle
        }[kind]()  # fmt: skip
        target = {} if kind == HeadKind.eagle else found["target"].identity()
        told = {key: value for key, value in report.items() if key not in ("curve", "all")}
        settings = (
            {"features": features, "tau": tau, "seed": seed, **recipe}
            if kind == HeadKind.sprinter
            else {"seed": seed, **recipe}
        )
        head.provenance = Provenance(found[base].identity(), target, texts.told, settings, told)
        head.save(folder)
        write(folder / "report.json", json.dumps(texts.told | report, indent=1) + "\n")
    _tell(kind, report, folder, pair_name, names, base)
    return folder


def _tell(kind: HeadKind, report: dict[str, Any], folder: Path, pair: str, tasks: list[str], base: str) -> None:
    """What the head is worth, and how it is used."""
    if kind == HeadKind.eagle:
        print(
            f"unseen texts: a first drafted token behind their own would be accepted {report['overlap']:.3f} of the time at"
            f" T = 1 (overlap of the laws); smooth L1 {report['smooth_l1']:.4f}, cross-entropy"
            f" {report['cross_entropy']:.3f} nats"
        )
    else:
        for told in report.get("all", [report]):
            label = f"{told['features']:<16} tau {told['tau_train']:g}" if "features" in told else kind.value
            saved = all(told.get(key) == report.get(key) for key in ("features", "tau_train"))
            print(
                f"{label}: AUC {told['auc']:.3f} [{told['auc_low']:.3f}, {told['auc_high']:.3f}],"
                f" eta_TP {told['eta_tp']:.3f}, eta_FP {told['eta_fp']:.3f}, base rate {told['base_rate']:.3f}"
                + (f", distance from the target {told['predicted_tv']:.3f} predicted" if "predicted_tv" in told else "")
                + (" <- saved" if saved else "")
            )
        print(f"of {report['rows']} rows from {report['texts']} unseen texts; intervals: 95 %, bootstrapped over texts")
    print(f"saved {folder}")
    method = "polybasic" if kind == HeadKind.eagle and base != "target" else kind.value
    print(f"use it: specbench run -m {method} -p {pair} -t {tasks[0]} --head {kind.value}@{base}={folder}")
