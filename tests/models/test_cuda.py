"""The CUDA path on a simulated device: what it waits for and launches, and what is left after a failure."""

import math
import os
import weakref
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from scripts.gpu import common as gpu
from scripts.gpu import gpu_graphs
from scripts.gpu.exactness import METHODS
from specbench.config.options import Options
from specbench.config.request import Access, Request
from specbench.decoding.loop import Generation, GenerationLimits
from specbench.decoding.rejection import verify_at_once
from specbench.decoding.sampling import Sampler
from specbench.experiment import generation, runner
from specbench.experiment.loaded_models import LoadedModels
from specbench.features.verify.enumeration import TableModels
from specbench.machine import hardware, memory
from specbench.models.heads import EagleHead
from specbench.models.lean import graphs as lean_graphs
from specbench.models.transformers_session import InstrumentedSession
from specbench.resolution.resolve import resolve
from specbench.resolution.run_plan import PairPlan
from specbench.runs.locking import locked
from specbench.runs.record import Record
from tests.fixtures.simulated_cuda import Graph, OnDevice, SimulatedCuda, Stream
from tests.fixtures.worlds import decode

CUDA = torch.device("cuda")
GREEDY_ONLY = ("bild",)
CHAINS = ("polybasic", "polybasic-model")
# Waits for the device and launches per round on graphs, in generations of 8 tokens, of every kind of method; the end of one
# takes two waits per model. The middle model of chains is int4, whose codes are unpacked for every product in float32.
BUDGETS: dict[str, tuple[float, int]] = {
    "adaedl": (6.4, 134), "ar": (1.3, 25), "ar-draft": (1.3, 15), "bild": (7.0, 121), "bild-star": (5.0, 178),
    "cascade-chow": (3.4, 136), "cascade-opt": (3.4, 146), "cascade-token": (3.4, 122), "cd-sd": (3.4, 129),
    "cd-se": (4.0, 141), "confidence": (10.0, 174), "dsl": (10.4, 160), "dtr-se": (1.7, 93), "eagle": (3.0, 100),
    "eagle3": (3.0, 105), "dflash": (2.7, 106), "dspark": (2.7, 147),
    "lossy-star": (3.4, 141), "lossy-star-budget": (3.4, 381), "oracle-diff": (1.5, 45), "pld": (1.3, 53),
    "polybasic": (11.0, 1050), "polybasic-model": (12.0, 900), "sd": (3.4, 117), "se-small-large": (3.0, 117),
    "seq-cascade": (2.3, 20), "specdec++": (8.0, 191), "sprinter": (6.7, 132), "token-cascade": (2.5, 36),
    "we": (1.5, 53), "we-p": (1.5, 53), "we-sd": (2.5, 95), "we-se": (1.7, 96),
}  # fmt: skip


class Cost(NamedTuple):
    """The waits and launches of one generation."""

    out: Generation
    syncs: Counter[str]
    launches: int


def plan_of(methods: list[str], engine: str, folder: Path, pair: str = "tiny", **options) -> PairPlan:
    chosen = Options(device="cuda", dtype="float32", engine=engine, repeats=1, ignore_eos=True, **options)
    return resolve(Request(methods=tuple(methods), pair=pair, tasks=("gsm8k",), options=chosen, out=folder)).plans[0]


def run(plan: PairPlan, device: SimulatedCuda, models: LoadedModels | None = None) -> dict[str, tuple[Record, Cost]]:
    """Each method's last record, and the cost of its decoding."""
    done: dict[str, tuple[Record, Cost]] = {}
    models = models or LoadedModels()
    with pytest.MonkeyPatch.context() as patch:
        costs: list[Cost] = []

        def counted(*arguments):
            syncs, launches = device.syncs.copy(), device.launches
            out = decode(*arguments)
            costs.append(Cost(out, device.syncs - syncs, device.launches - launches))
            return out

        patch.setattr(generation, "decode", counted)
        for name in ("copy_bandwidth", "read_bandwidth"):
            patch.setattr(runner, name, lambda _: 1e9)
        patch.setattr(runner, "WARM_UP_TOKENS", 6)
        for planned in plan.runs:
            with locked([planned.folder], Access()) as locks:
                recorder = runner.open_recorder(planned, locks[planned.folder], Access(fresh=True))
                for record in runner.decode_missing(planned, models.of(plan), recorder):
                    assert record.error is None, (record.method, record.error)
                    done[record.method] = record, costs[-1]
    return done


def everything(engine: str, folder: Path, names: list[str]) -> dict[str, tuple[Record, Cost]]:
    """The methods of these names, at T = 1 where it has a meaning for them."""
    plain = [name for name in names if name not in (*GREEDY_ONLY, *CHAINS)]
    settings = ((plain, "tiny", 1.0), ([*GREEDY_ONLY], "tiny", 0.0), ([*CHAINS], "tiny-polybasic", 1.0))
    done: dict[str, tuple[Record, Cost]] = {}
    with SimulatedCuda() as device:
        for methods, pair, temperature in settings:
            options = {"temperature": temperature, "limit": 1, "max_new_tokens": 8}
            done |= run(plan_of(methods, engine, folder / f"{engine}-{pair}-{temperature}", pair, **options), device)
    assert not device.problems
    return done


QUICK = (
    "adaedl",
    "ar",
    "cascade-opt",
    "dsl",
    "dspark",
    "eagle",
    "lossy-star-budget",
    "pld",
    "sd",
    "seq-cascade",
    "we-p",
    "we-se",
)  # a method of each kind that reads the device in its own way; the others are slow


@pytest.fixture(autouse=True, scope="module")
def one_warm_up():
    """Warm graphs up once before each capture: CUDA needs two runs, and the simulated device none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lean_graphs, "WARM_UPS", 1)
        yield


@pytest.fixture(scope="module")
def quick_on_graphs(tmp_path_factory):
    return everything("graph", tmp_path_factory.mktemp("quick"), list(QUICK))


@pytest.fixture(scope="module")
def on_graphs(tmp_path_factory):
    return everything("graph", tmp_path_factory.mktemp("graph"), list(BUDGETS))


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(gpu, "FUSED", False)  # nothing can be compiled for a simulated device
    with SimulatedCuda() as simulated:
        yield simulated


@pytest.mark.parametrize("method", QUICK)
def test_waits_and_launches_of_a_round_are_within_budget(quick_on_graphs, method):
    within_budget(quick_on_graphs, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in BUDGETS if name not in QUICK])
def test_waits_and_launches_of_the_other_methods_are_within_budget(on_graphs, method):
    within_budget(on_graphs, method)


def within_budget(done, method) -> None:
    _, cost = done[method]
    rounds, (syncs, launches) = len(cost.out.rounds), BUDGETS[method]
    assert cost.syncs.total() / rounds <= syncs
    assert cost.launches / rounds <= launches


@pytest.mark.slow
def test_graphs_and_plain_forwards_decode_the_same_tokens(on_graphs, tmp_path):
    lean = everything("lean", tmp_path, ["sd", "we-se", "cd-se", "cascade-opt", "eagle", "pld", "adaedl", "we-p"])
    differing = [name for name in lean if lean[name][0].tokens != on_graphs[name][0].tokens]
    assert not differing


def test_eager_sessions_draft_without_reading_each_token(device, tmp_path):
    done = run(plan_of(["sd"], "eager", tmp_path, limit=1, max_new_tokens=16, temperature=1.0), device)
    _, cost = done["sd"]
    reads = sum(count for place, count in cost.syncs.items() if place.startswith("tolist"))
    assert reads == 2 * len(cost.out.rounds), "the draft and its verification"
    assert not device.problems


def test_trees_are_read_once_when_drafted_and_once_when_verified(device, tmp_path):
    options = {"limit": 1, "max_new_tokens": 16, "temperature": 1.0}
    done = run(plan_of(["sd-tree", "eagle-tree"], "graph", tmp_path, **options), device)
    for record, cost in (done[name] for name in ("sd-tree", "eagle-tree")):
        reads = sum(count for place, count in cost.syncs.items() if place.startswith("tolist"))
        assert reads == 2 * len(cost.out.rounds), record.method
    assert not device.problems


def test_models_on_two_devices_decode_the_same_tokens(tmp_path):
    """The draft model is on the CPU. Distributions and random numbers are on the run's device."""
    methods, overrides = ["sd", "cascade-opt", "adaedl"], (("pair.models.draft.device", "cpu"),)
    found = []
    for name, options in {"one": {}, "two": {"overrides": overrides}}.items():
        with SimulatedCuda() as device:
            plan = plan_of(methods, "lean", tmp_path / name, limit=1, max_new_tokens=8, temperature=1.0, **options)
            found.append({name: record.tokens for name, (record, _) in run(plan, device).items()})
        assert not device.problems
    assert found[0] == found[1]
    assert plan.models["draft"].source.placement == "cpu"


@pytest.fixture
def small(device):
    """Two small models on the device, of which one overflows at token 39."""
    models = gpu.Small("llama", CUDA)
    for role in "ab":
        models.roles[role].model.get_input_embeddings().weight.data.held[39].fill_(math.nan)
    return models


def decoded(small: gpu.Small, engine: str, prompt: list[int], temperature: float) -> list[int] | str:
    sessions = {role: each.session(engine) for role, each in small.roles.items()}
    sampler = Sampler(temperature, generator=gpu.generator(CUDA, 0))
    try:
        return decode(METHODS["sd"][0], TableModels(sessions, prompt), sampler, GenerationLimits(frozenset(), 8)).tokens
    except FloatingPointError as error:
        return str(error)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_prompt_with_nan_does_not_affect_the_next(small, temperature):
    before = decoded(small, "graph", [5, 1, 2, 0], temperature)
    assert isinstance(decoded(small, "graph", [5, 1, 2, 0, 7, 8, 9, 39], temperature), str)
    assert (
        decoded(small, "graph", [5, 1, 2, 0], temperature)
        == before
        == decoded(small, "lean", [5, 1, 2, 0], temperature)
    )


def test_a_grown_cache_is_cleared_and_captured_again(small):
    graphs = small.roles["b"].graphs
    session = small.roles["b"].session("graph")
    session.score([1] * (graphs.cache.capacity + 1), graphs.cache.capacity)
    assert graphs.find(1, 5) is None, "the cache has moved"
    assert graphs.prepare(graphs.cache.capacity + 1) > 0
    assert graphs.find(1, 5) is not None
    assert bool(graphs.cache.storage.isfinite().all())


@pytest.mark.slow
def test_capturing_for_a_longer_sequence_is_not_timed_and_is_recorded(device, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "_longest", lambda *_: 8)  # as if later turns were far longer than first ones
    plan = plan_of(["sd"], "graph", tmp_path, limit=1, max_new_tokens=200, temperature=0.0)
    record, _ = run(plan, device)["ar"]
    assert record.captured > 0
    assert record.capture_seconds > 0.0
    forwards = record.models["target"].forwards
    assert device.replays >= forwards, "no forward of a token has lost its graph"


def test_released_models_and_graphs_are_freed(device, tmp_path):
    plan = plan_of(["sd", "eagle"], "graph", tmp_path, limit=1, max_new_tokens=8, temperature=1.0)
    models = LoadedModels()
    run(plan, device, models)
    loaded = models.of(plan)
    graphs = [model.graphs for model in loaded.models.values()]
    networks = [model.transformers() for model in loaded.models.values()]
    left = [weakref.ref(each) for each in (*networks, *graphs, *loaded.heads.values())]
    assert len(device.live) > 0
    del loaded, graphs, networks
    models.release()
    assert [each() for each in left if each() is not None] == []
    assert len(device.live) == 0


def test_each_model_captures_on_a_stream_and_into_a_pool_of_its_own(device, tmp_path):
    plan = plan_of(["we-p", "eagle"], "graph", tmp_path, limit=2, max_new_tokens=8, temperature=1.0)
    models = LoadedModels()
    run(plan, device, models)
    loaded = models.of(plan)
    head = next(each for each in loaded.heads.values() if isinstance(each, EagleHead))
    graphs_of_models = [model.graphs for model in loaded.models.values()]
    own = {id(graphs): captured_by(graphs, device) for graphs in (*graphs_of_models, head.graphs)}
    assert all(len(each) == 1 for each in own.values()), "one stream and one pool for a model"
    assert len(set.union(*own.values())) == len(own) > 2
    assert id(Stream.default_capture()) not in {stream for each in own.values() for stream, _ in each}


def captured_by(graphs, device: SimulatedCuda) -> set[tuple[int, int]]:
    """The streams and pools of the graphs that were captured on a cache."""
    mine = [*graphs._graphs.values(), *graphs._drafts.values()]
    captured = [cell.cell_contents for each in mine for cell in each._replay.__closure__]
    return {(id(each.stream), id(each.pool)) for each in captured if isinstance(each, Graph)}


def test_parallel_models_keep_their_streams(device, tmp_path):
    plan = plan_of(["we-p"], "lean", tmp_path, limit=3, max_new_tokens=8, temperature=1.0)
    before = Stream.made
    run(plan, device)
    assert Stream.made - before == 2, "a stream a model, not one a prompt"


def test_gpu_numerics_are_set_and_recorded(device):
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    hardware.configure(CUDA)
    gpu_facts = hardware.fingerprint()["gpu"]
    assert gpu_facts["attention"] == "flash, memory-efficient, math"
    assert gpu_facts["float32_products"] == "highest"
    assert gpu_facts["bfloat16_sums"] == "float32"


def test_nvidia_smi_is_queried_about_the_gpu_in_use(device, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$*" in *--id=GPU-0*) echo "1.0, 2, 3, 4, 5, 6";; *) echo "another, 0, 0, 0, 0, 0";; esac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert hardware.fingerprint()["gpu"]["driver_version"] == "1.0"


def test_copying_is_timed_by_events_after_a_warm_up(device, monkeypatch):
    monkeypatch.setattr(memory, "WARMED", 0.02)
    assert memory.copy_bandwidth("cuda") > 0.0
    assert device.operations["copy_"] > memory.REPETITIONS


def test_reading_is_timed_by_events_after_a_warm_up(device, monkeypatch):
    monkeypatch.setattr(memory, "WARMED", 0.02)
    assert memory.read_bandwidth("cuda") > 0.0
    assert device.operations["mv"] > device.operations["dot"] >= memory.REPETITIONS


def test_a_compiled_forward_is_timed_as_a_whole(device, tmp_path, monkeypatch):
    """What transformers compiles has no hooks: they would be compiled with it."""
    loaded = LoadedModels().of(plan_of(["sd"], "eager", tmp_path, limit=1))
    model, seen = loaded.models["target"].transformers(), []

    def compiled(call, **_):
        def called(*args, **kwargs):
            seen.append((len(model._forward_hooks), len(model._forward_pre_hooks)))
            return call(*args, **kwargs)

        return called

    monkeypatch.setattr(torch, "compile", compiled)
    instrumented = InstrumentedSession(model, [1, 2, 3])
    ids = OnDevice(torch.tensor([[1, 2, 3]]))
    with instrumented.instrument():
        model(input_ids=ids)
        model.get_compiled_call(None)(input_ids=ids[:, -1:])
        model(input_ids=ids)
    instrumented.finish()
    assert seen == [(0, 0)]
    assert instrumented.fed == [3, 1, 3]
    assert instrumented.usage.forwards == 2
    assert not model._forward_hooks
    assert "get_compiled_call" not in vars(model)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(
            run, id=f"{suite}-{what}", marks=pytest.mark.slow if suite == "reuse" else ()
        )  # as the tests above
        for suite, what, run in gpu_graphs.graph_checks(CUDA)
        if suite != "int4" and (suite != "bfloat16" or what.endswith("span 256"))  # int4 has kernels of its own
    ],
)
def test_the_checks_of_graphs_pass_on_the_simulated_device(device, check):
    measured, limit, passed = check()
    assert passed, (measured, limit)
    assert not device.problems


def test_verification_that_waits_fails_its_check(device, monkeypatch):
    def waiting(draft, pi, sampler):
        assert pi.sum().item() > 0.0
        return verify_at_once(draft, pi, sampler)

    monkeypatch.setattr(gpu_graphs, "verify_at_once", waiting)
    with pytest.raises(RuntimeError, match="synchronizing"):
        gpu_graphs.verification_does_not_wait(CUDA)


def test_simulated_waits_and_launches_are_detected(device):
    """The simulated device itself.

    A wait, a mixed operation, a wait in a capture, memory that a replay may not rely on.
    """
    x = OnDevice(torch.ones(3))
    assert x.sum().item() == 3.0
    assert sum(device.syncs.values()) == 1
    _ = x + torch.ones(3)
    assert any("mixes devices" in problem for problem in device.problems)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        y = x * 2
        _ = y.tolist()
    assert any("inside a capture" in problem for problem in device.problems)
    x.add_(1)
    captured.replay()
    assert y.held.tolist() == [4.0, 4.0, 4.0]
