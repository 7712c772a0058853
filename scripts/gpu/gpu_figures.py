"""Settings, measured figures, timing and models that the parts of `make gpu-bench` share."""

import dataclasses
import random
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch

from scripts.gpu.common import say, synchronise
from specbench.config.construct import construct
from specbench.config.pair import Pair
from specbench.config.presets import preset
from specbench.models.loaded_pair import LoadedPair
from specbench.models.loader import load
from specbench.models.resolve_models import Execution, resolve_models
from specbench.models.resolved_model import ResolvedModel

SMALL = {  # for --small, which tries things out on a CPU
    "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4,
}  # fmt: skip
SMALL_DRAFT = SMALL | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The device and the amount of work. `seconds` is the time limit of a part, after which it begins nothing new."""

    device: torch.device
    small: bool
    prompt: int
    tokens: int
    prompts: int
    repeats: int
    forwards: int
    rates: tuple[float, ...]
    seconds: float

    def ids(self, vocabulary: int, seed: int) -> list[int]:
        """Return a prompt of random ids."""
        rng = random.Random(seed)
        return [rng.randrange(vocabulary) for _ in range(self.prompt)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured number with its interval and goal.

    Args:
        simulated: what is simulated about the models; empty if nothing is.
        value: None if it could not be measured; `beside` then holds the reason.
        low, high: the range over repeats, or the 95 % interval of a speedup.
        least, most: the goal, if there is one.
        beside: related numbers by name.
    """

    what: str
    models: str
    engine: str
    simulated: str
    value: float | None
    unit: str
    low: float | None = None
    high: float | None = None
    least: float | None = None
    most: float | None = None
    beside: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def met(self) -> bool | None:
        """Whether the goal was met; None without a goal."""
        if self.least is None and self.most is None:
            return None
        return self.value is not None and (self.least or 0.0) <= self.value <= (self.most or float("inf"))

    def row(self) -> dict[str, Any]:
        """Return the figure as a row of the JSON file."""
        return dataclasses.asdict(self) | {"met": self.met}

    def cells(self) -> list[str]:
        """Return the figure as a row of the Markdown table."""
        measured = "not measured" if self.value is None else f"{text(self.value)} {self.unit}".strip()
        if self.low is not None and self.high is not None:
            measured += f" [{text(self.low)}, {text(self.high)}]"
        goal = f">= {text(self.least)}" if self.least is not None else f"<= {text(self.most)}" if self.most else ""
        met = {None: "", True: "met", False: "not met"}[self.met]
        beside = ", ".join(f"{key} {text(value)}" for key, value in self.beside.items())
        return [self.what, self.models, self.engine, self.simulated or "–", measured, goal, met, beside]


HEAD = ("what", "models", "engine", "simulated", "measured", "goal", "", "also measured")


def text(value: Any) -> str:
    """Return a number with three significant digits, and any other value as it is."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3g}" if abs(value) < 100.0 else f"{value:.0f}"


def figure(values: list[float], **more: Any) -> Figure:
    """Return the median of repeats, with their range."""
    return Figure(value=median(values), low=min(values), high=max(values), **more)


def dummy_pair(
    name: str, settings: Settings, logits: str = "real"
) -> tuple[Pair, dict[str, ResolvedModel], LoadedPair]:
    """Load a preset pair with random weights, in bfloat16 on a GPU and in float32 on a CPU."""
    found_pair = preset("pair", name)
    models = {
        role: spec | ({"config": SMALL_DRAFT if role == "draft" else SMALL} if settings.small else {})
        for role, spec in found_pair.table["models"].items()
    }
    table = found_pair.table | {"weights": "dummy", "logits": logits, "models": models}
    pair, base = construct(Pair, table, name), found_pair.path.parent
    found = resolve_models(pair, tuple(pair.models), base, Execution(settings.device))
    say(f"random weights for {', '.join(map(named(pair, settings), pair.models))}")
    return pair, found, load(found, base, settings.device)


def named(pair: Pair, settings: Settings) -> Callable[[str], str]:
    """Return a function from a role to the name of its model."""
    return lambda role: pair.models[role].path.rpartition("/")[2] + (" (small)" if settings.small else "")


def race(runs: Mapping[str, Callable[[], None]], settings: Settings) -> dict[str, list[float]]:
    """Time every run once per repeat in rotating order, with the device idle before and after. Returns seconds by name."""
    names, seconds = list(runs), {name: list[float]() for name in runs}
    for run in runs.values():
        run()  # warm-up
    for repeat in range(settings.repeats):
        at = repeat % len(names)
        for name in names[at:] + names[:at]:
            synchronise(settings.device)
            begin = time.perf_counter()
            runs[name]()
            synchronise(settings.device)
            seconds[name].append(time.perf_counter() - begin)
    return seconds
