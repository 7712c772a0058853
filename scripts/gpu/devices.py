"""Checks of models on several GPUs, whose tokens must equal the tokens of one GPU, and of the planned memory of a GPU."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from scripts.gpu.exactness import Verdict
from specbench.config.pair import place_overrides

PLACEMENTS = {
    "a GPU for each model": ("sd", ["draft=cuda:1", "target=cuda:0"]),
    "models side by side": ("we-p", ["draft=cuda:1", "target=cuda:0"]),
    "layers over two GPUs": ("sd", ["target=layers:0,1"]),
}
SETTINGS: dict[str, Any] = {
    "limit": 4, "repeats": 1, "max_new_tokens": 32, "ignore_eos": True, "dtype": "float32", "engine": "eager"
}  # fmt: skip
TOLERANCE = 0.05  # of the planned memory
POSITIONS = 512


def device_checks(device: torch.device) -> Iterator[tuple[str, str, Callable[[], Verdict]]]:
    """Yield suite, name and function of each check. Checks of several GPUs are skipped with fewer than two."""
    yield "memory", "planned and allocated bytes of a model and its cache", partial(memory_is_planned, device)
    for name, (method, places) in PLACEMENTS.items():
        for temperature in (0.0, 1.0):
            run = partial(placed_tokens_agree, method, places, temperature)
            yield "devices", f"{name}, {method}, T = {temperature:g}", run


def placed_tokens_agree(method: str, places: list[str], temperature: float) -> Verdict:
    """Compare the tokens of a placement with the tokens of one GPU."""
    if torch.cuda.device_count() < 2:
        return f"{torch.cuda.device_count()} GPUs", "two GPUs", None
    try:
        one = tokens_of(method, [], temperature)
        several = tokens_of(method, places, temperature)
    except ImportError as error:
        return f"{error.name} is not installed", "all packages", None
    equal = sum(one[key] == several[key] for key in one)
    return f"{equal} of {len(one)} generations equal", "all equal", equal == len(one)


def memory_is_planned(device: torch.device) -> Verdict:
    """Compare the planned memory of the bundled target with what is allocated, without the assumed workspace."""
    from specbench.config.options import Options
    from specbench.models.loader import load
    from specbench.models.resolve_models import Execution, resolve_models
    from specbench.resolution.memory_estimate import memory_by_device
    from specbench.resolution.selection import read_pair

    if device.type != "cuda":
        return "no GPU", "a GPU", None
    preset, pair = read_pair("tiny", Options())
    found = resolve_models(pair, ("target",), preset.path.parent, Execution(device, "float32", "eager"))
    (expected,) = memory_by_device(found, {}, POSITIONS)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    model = load(found, preset.path.parent, device).models["target"].transformers()
    with torch.inference_mode():
        ids = torch.arange(POSITIONS, device=device)[None] % 100
        cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
    torch.cuda.synchronize()
    allocated = torch.cuda.memory_allocated() - before
    del cache
    wanted = expected.weights + expected.cache
    ratio = allocated / wanted
    return f"{ratio:.3f} of the planned {wanted / 2**20:.1f} MiB", f"within {TOLERANCE:.0%}", abs(ratio - 1) < TOLERANCE


def tokens_of(method: str, places: list[str], temperature: float) -> dict[Any, list[int]]:
    """Return the token ids of a run by method, sample and repeat. Raises RuntimeError if a generation failed."""
    from specbench.config.options import Options
    from specbench.config.request import Request
    from specbench.experiment.pipeline import run
    from specbench.runs.run_folder import load

    options = Options(**SETTINGS, temperature=temperature, overrides=tuple(place_overrides(places)))
    with tempfile.TemporaryDirectory() as folder:
        request = Request(methods=(method,), pair="tiny", tasks=("gsm8k",), options=options, out=Path(folder))
        records = load(Path(run(request).summaries[0].folder)).records
    if failed := next((record.error for record in records if record.error), None):
        raise RuntimeError(failed)
    return {record.key: record.tokens for record in records}
