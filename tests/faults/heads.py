"""Damaged heads: keys of the config, weights, tables of tokens and files of every bundled head, and a run that uses it."""

import json
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tests.faults.attack import Ended, Outcome, here

METHODS = {  # of each bundled head, by its folder
    "eagle": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark", "sprinter": "sprinter",
    "specdec++": "specdec++", "dsl": "dsl",
}  # fmt: skip
DRAFTING = ("eagle", "eagle3", "dflash", "dspark")  # heads with a config and model.safetensors
RUN = (
    "-t",
    "gsm8k",
    "--data",
    "synthetic",
    "-n",
    2,
    "--max-new-tokens",
    12,
    "--repeats",
    1,
    "--set",
    "task.gsm8k.shots=0",
)
SECONDS = 60  # after which a trial hangs
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7.5, 10**6, 10**12, 1e308, float("nan"), "", "x", "8", [], [1], [0.5, 2], {}, {"a": 1},
    [[]], [None], "\ud800", [-1, 2, 3], [2, 2, 2], [10**9],
)  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
CHANGES: tuple[dict[str, Any], ...] = (  # keys that change a forward
    {"layer_types": ["sliding_attention"], "sliding_window": 2}, {"sliding_window": 2, "use_sliding_window": True},
    {"partial_rotary_factor": 0.5}, {"rope_parameters": PLAIN | {"partial_rotary_factor": 0.5}},
    {"rope_parameters": {"full_attention": PLAIN}}, {"rope_parameters": PLAIN | {"rope_type": "linear", "factor": 4.0}},
    {"rope_parameters": {"rope_theta": 77.0}}, {"rope_interleave": True}, {"rotary_dim_share": 0.25},
    {"is_neox_style": False},
    {"logit_scale": 0.25}, {"final_logit_softcapping": 30.0}, {"rms_norm_eps": 0.5}, {"hidden_act": "gelu"},
    {"mlp_bias": True}, {"attention_bias": True}, {"norm_before_residual": True}, {"norm_before_fc": True}, {"fc_norm": True},
    {"norm_output": True}, {"causal": True}, {"use_swa": True}, {"attn_output_gate": True}, {"embedding_multiplier": 12.0},
    {"residual_multiplier": 0.2}, {"attention_sinks": 4}, {"query_scaling": 2.0}, {"is_causal": False},
    {"eagle_config": {"use_mtp_layernorm": True}}, {"dflash_config": {"causal": True}}, {"add_para_norm": True},
    {"parallel_drafting": True}, {"draft_vocab_size": 77}, {"markov_rank": 3},
)  # fmt: skip
UNREAD = {  # keys that this drafter does not have, and that name no part of its forward
    "eagle": {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "eagle_config", "dflash_config",
              "draft_vocab_size", "markov_rank"},
    "eagle3": {"dflash_config", "markov_rank"},
    "dflash": {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "eagle_config"},
    "dspark": {"norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "eagle_config"},
}  # fmt: skip
Table = dict[str, Tensor]
Damage = Callable[[Path, str, random.Random], str]


def damaged(trials: int, seed: int, folder: Path) -> Outcome:
    """Damage a copy of a bundled head and run its method.

    The head is rejected before anything is decoded, or it decodes. A key that changes a forward is computed or rejected.
    """
    from specbench.config.pair import PACKAGE

    outcome, ways = Outcome(), list(WAYS)
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        way = ways[trial % len(ways)]
        kinds = DRAFTING if way in OF_CONFIG else tuple(METHODS)
        kind = kinds[(trial // len(ways) + rng.randrange(len(kinds))) % len(kinds)]
        shutil.copytree(PACKAGE / "tiny" / "heads" / kind, where / "head")
        before = _outputs(kind, where / "head") if way == "a key that changes a forward" else None
        what = WAYS[way](where / "head", kind, rng)
        method = METHODS[kind]
        with _alarm():
            done = here(["run", "-m", method, "--head", f"{kind}={where / 'head'}", *RUN], where)
        problems = done.problems({0, 2, 4}) + _decoded(done, where)
        if before is not None and done.code == 0 and torch.equal(before, _outputs(kind, where / "head")):
            problems.append("the key is ignored")
        outcome.add(f"{kind}, {way}: {what} (trial {trial})", problems)
        shutil.rmtree(where)
    return outcome


@contextmanager
def _alarm() -> Iterator[None]:
    """Raise TimeoutError within a trial that hangs; `here` shows it as a traceback."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still running after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _decoded(done: Ended, where: Path) -> list[str]:
    """Return what is wrong with the samples of a run: failed ones, and figures of a head that was rejected."""
    rows = [
        json.loads(line) for path in where.glob("results/*/samples.jsonl") for line in path.read_text().splitlines()
    ]
    if failed := [row["error"] for row in rows if row["error"]]:
        return [f"accepted, and failed while decoding: {str(failed[0])[:200]}"]
    return ["rejected after decoding"] if rows and done.code else []


def _outputs(kind: str, folder: Path) -> Tensor:
    """Return the logits of a head that drafts, on random states of the bundled target."""
    from transformers import AutoModelForCausalLM

    from specbench.config.pair import PACKAGE
    from specbench.models.heads import BlockHead, DraftHead, EagleHead
    from specbench.models.model_runner import Feed

    base = AutoModelForCausalLM.from_pretrained(PACKAGE / "tiny" / "models" / "target", dtype=torch.float32)
    head = DraftHead.read(folder).goes_with(base.get_input_embeddings().weight.data, base.config)
    tokens, states = head.made_up(24)
    cache: Any = head.new_cache()  # type: ignore[attr-defined]  # of both classes
    embedding = base.get_output_embeddings()
    with torch.no_grad():
        cache.begin(Feed(tokens, 0, states=states))
        if isinstance(head, EagleHead):
            _, made = head.advance(tokens, head.fuse(states), cache)
            cache.begin(Feed(tokens[-1:], len(tokens), features=made[-1:]))
            return head.logits(head.advance(tokens[-1:], made[-1:], cache)[0], embedding)
        assert isinstance(head, BlockHead)
        head.store(states, cache)
        cache.begin(Feed(tokens[:4], len(tokens)))
        return head.logits(head.forward_block(tokens[-1:], 4, cache), embedding)


def _config(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    table = json.loads((folder / "config.json").read_text())
    change(table)
    (folder / "config.json").write_text(json.dumps(table))


def _wrong_value(folder: Path, kind: str, rng: random.Random) -> str:
    table = json.loads((folder / "config.json").read_text())
    key, value = rng.choice(sorted(table)), rng.choice(VALUES)
    _config(folder, lambda config: config.update({key: value}))
    return f"{key} = {value!r}"


def _missing_key(folder: Path, kind: str, rng: random.Random) -> str:
    key = rng.choice(sorted(json.loads((folder / "config.json").read_text())))
    _config(folder, lambda config: config.pop(key))
    return f"no {key}"


def _nested(folder: Path, kind: str, rng: random.Random) -> str:
    key = rng.choice(
        ("eagle_config", "dflash_config", "transformer_layer_config", "speculators_config", "rope_parameters", "model")
    )
    inner = rng.choice((
        {"eagle_aux_hidden_state_layer_ids": rng.choice(VALUES)}, {"target_layer_ids": rng.choice(VALUES)},
        {"mask_token_id": rng.choice(VALUES)}, {"verifier": rng.choice(VALUES)}, {"rope_theta": rng.choice(VALUES)},
        {"rope_type": rng.choice(("yarn", "dynamic", "longrope", "x", 3))}, rng.choice(VALUES),
    ))  # fmt: skip
    _config(folder, lambda config: config.update({key: inner}))
    return f"{key} = {inner!r}"


def _other_drafter(folder: Path, kind: str, rng: random.Random) -> str:
    change = rng.choice((
        {"architectures": ["LlamaForCausalLMEagle3"]}, {"architectures": ["DFlashDraftModel"]}, {"architectures": []},
        {"architectures": ["Qwen3DSparkModel"]}, {"architectures": None}, {"model_type": "qwen3"}, {"model_type": "gpt2"},
        {"model_type": "gemma3"}, {"speculators_model_type": "eagle3"}, {"speculators_model_type": "dflash"},
        {"speculators_model_type": 3}, {"speculators_model_type": "x"}, {"num_nextn_predict_layers": 1},
    ))  # fmt: skip
    _config(folder, lambda config: config.update(change))
    return str(change)


def _forward_key(folder: Path, kind: str, rng: random.Random) -> str:
    change = rng.choice([each for each in CHANGES if not {*each} & UNREAD[kind]])
    layers = json.loads((folder / "config.json").read_text()).get("num_hidden_layers", 1)
    if "layer_types" in change:
        change = change | {"layer_types": ["sliding_attention"] * min(layers, 8)}
    _config(folder, lambda config: config.update(change))
    return str(change)


def _text(folder: Path, kind: str, rng: random.Random) -> str:
    path = folder / "config.json"
    data = path.read_bytes()
    text = rng.choice(
        (
            b"",
            b"[]",
            b"null",
            b"{}",
            b"{",
            b"\xff\xfe",
            b"[" * 100_000,
            b'{"a":' * 50_000,
            data[: rng.randrange(len(data))],
        )
    )
    path.write_bytes(text)
    return f"config.json = {text[:20]!r}"


def _file(folder: Path, kind: str, rng: random.Random) -> str:
    path = _weights(folder)
    data = path.read_bytes()
    at = rng.randrange(len(data))
    ways = {
        "cut": data[:at], "empty": b"", "noise in the header": data[:20] + rng.randbytes(20) + data[40:],
        "noise": data[:at] + rng.randbytes(64) + data[at + 64 :], "a long header": (2**40).to_bytes(8, "little") + data[8:],
        "doubled": data + data, "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    }  # fmt: skip
    way = rng.choice(sorted(ways))
    path.write_bytes(ways[way])
    return way


def _weights(folder: Path) -> Path:
    return next(path for path in (folder / "model.safetensors", folder / "head.safetensors") if path.exists())


def _tensors(folder: Path, change: Callable[[Table], None]) -> None:
    path = _weights(folder)
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (file is not a dict)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=metadata)


def _one(folder: Path, rng: random.Random) -> str:
    with safe_open(_weights(folder), "pt") as file:
        return rng.choice(sorted(file.keys()))


def _tensor(folder: Path, kind: str, rng: random.Random) -> str:
    name = _one(folder, rng)
    shapes: dict[str, Callable[[Tensor], Tensor]] = {
        "halved": lambda w: w[: len(w) // 2], "flat": lambda w: w.flatten(), "one row more": lambda w: torch.cat([w, w[:1]]),
        "a scalar": lambda w: w.flatten()[0].clone(), "empty": lambda w: w[:0], "wider": lambda w: w.unsqueeze(0),
        "transposed": lambda w: w.t() if w.ndim == 2 else w[:-1],
    }  # fmt: skip
    types = {
        str(t): (lambda w, t=t: w.to(t))
        for t in (torch.int64, torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn)
    }
    what = rng.choice(["missing", "renamed", "extra", *sorted(shapes), *sorted(types)])

    def change(tensors: Table) -> None:
        tensor = tensors[name]
        if what in ("missing", "renamed"):
            del tensors[name]
        if what in ("renamed", "extra"):
            tensors[f"{name}.x"] = tensor.clone()
        elif what != "missing":
            tensors[name] = (shapes | types)[what](tensor).clone()

    _tensors(folder, change)
    return f"{name} {what}"


def _values(folder: Path, kind: str, rng: random.Random) -> str:
    name, value = _one(folder, rng), rng.choice((float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e30))
    share = rng.choice((0.0, 1.0))

    def change(tensors: Table) -> None:
        flat = tensors[name].float().flatten()
        flat[: max(1, int(share * len(flat)))] = value
        tensors[name] = flat.view(tensors[name].shape)

    _tensors(folder, change)
    return f"{value} in {'all' if share else 'one'} of {name}"


def _tables(folder: Path, kind: str, rng: random.Random) -> str:
    width = 192
    tables = {
        "offsets": torch.arange(8), "negative": -torch.arange(8) - 3, "fractional": torch.arange(8) + 0.5,
        "twice": -torch.arange(8), "beyond": torch.full((8,), 10**6), "short": torch.zeros(3, dtype=torch.int64),
        "a matrix": torch.zeros(8, 2, dtype=torch.int64), "flags": torch.ones(8, dtype=torch.bool),
        "huge": torch.full((8,), 2**62),
    }  # fmt: skip
    what, has_head = rng.choice(sorted(tables)), rng.random() < 0.8

    def change(tensors: Table) -> None:
        tensors["d2t"] = tables[what]
        if rng.random() < 0.5:
            tensors["t2d"] = torch.zeros(1024, dtype=torch.bool).index_fill_(0, torch.arange(8) * 2, True)
        if has_head:
            tensors["lm_head.weight"] = torch.randn(8, width)

    _tensors(folder, change)
    return f"d2t: {what}"


WAYS: dict[str, Damage] = {
    "a wrong value": _wrong_value, "weights": _tensor, "a key that changes a forward": _forward_key, "values": _values,
    "a missing key": _missing_key, "a nested table": _nested, "tables of tokens": _tables, "file of weights": _file,
    "another drafter": _other_drafter, "text of the config": _text,
}  # fmt: skip
OF_CONFIG = {*WAYS} - {"weights", "values", "file of weights"}
