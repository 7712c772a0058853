"""Resolution of a pair's models: revisions, sizes, engines. Reads configs and loads no weights."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

import torch
from huggingface_hub import try_to_load_from_cache
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import GENERATION_CONFIG_NAME, cached_file

from specbench.config.pair import ModelSpec, Pair, folder, is_gguf
from specbench.config.presets import chat_template
from specbench.config.quantization_kind import CHANNEL, Group, QuantizationKind
from specbench.data.hub import commit_of, first_line, local_checksum
from specbench.errors import ConfigError, MissingAsset
from specbench.files import in_one_line
from specbench.models import simulated
from specbench.models.checkpoints import (
    CONSTRUCTION,
    class_of,
    is_same_tokenizer,
    load_tokenizer,
    read_config,
    require_same_tokenizer,
    unreadable,
)
from specbench.models.engines import engine_of
from specbench.models.quantization import layers, linear_layers, quantization_method, torchao
from specbench.models.quantized_files.registry import unread
from specbench.models.resolved_model import Architecture, ResolvedModel
from specbench.models.widening import widened

CONFIG_FILE = "config.json"  # of every model that Transformers saves
FINER: tuple[Group, ...] = ("g64", "g32", CHANNEL)  # groups to suggest where larger ones divide no layer's inputs


@dataclass(frozen=True)
class Execution:
    """The default device of models, their precision and their engine; `auto` is resolved for each model.

    `elsewhere` is for estimates of another machine: neither weights, nor the hub, nor devices or libraries are needed here,
    and the architecture of a hub id is read from configs/architectures/.
    """

    device: torch.device
    dtype: str = "auto"
    engine: str = "auto"
    elsewhere: bool = False


_assumed: ContextVar[str] = ContextVar("assumed", default="")


@contextmanager
def assuming(device: str) -> Iterator[None]:
    """Resolve models for machines with this default device, such as the GPU nodes of a cluster on a login node without a GPU.

    Nothing is assumed if it is empty. Weights must not be loaded within this context.
    """
    token = _assumed.set(device)
    try:
        yield
    finally:
        _assumed.reset(token)


def device_of(choice: str) -> torch.device:
    """Return the device; `auto` is CUDA if available. Raises MissingAsset if CUDA is requested and not available."""
    if assumed := _assumed.get():
        return torch.device(assumed if choice == "auto" else choice)
    if choice.startswith("cuda") and not torch.cuda.is_available():
        raise MissingAsset("no CUDA device here; use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if choice == "auto" else choice)


def device_of_model(role: str, spec: ModelSpec, default: torch.device, elsewhere: bool = False) -> torch.device:
    """Return the device that a model reads its input on: its own, the first of several, or the default.

    Raises MissingAsset if one of its devices is not here, unless the model is to run `elsewhere`.
    """
    devices = spec.placement.devices
    for name in () if elsewhere or _assumed.get() else devices:
        kind, _, number = name.partition(":")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if kind == "cuda" and int(number or 0) >= count:
            raise MissingAsset(f"model '{role}': no device {name} here ({count} GPUs); help: --place {role}=DEVICE")
    return torch.device(devices[0]) if devices else default


def dtype_of(choice: str, device: torch.device) -> str:
    """Return the dtype; `auto` is float32 on a CPU and bfloat16 on a GPU."""
    return ("bfloat16" if device.type == "cuda" else "float32") if choice == "auto" else choice


def resolve_models(pair: Pair, roles: tuple[str, ...], base: Path, on: Execution) -> dict[str, ResolvedModel]:
    """Return the models of these roles. Raises MissingAsset, with advice, if one is not here and cannot be fetched."""
    with _errors_about_folders(pair, roles, base):
        models = {role: _resolve_model(role, pair, base, on) for role in roles}
    if len({model.architecture.encoder_decoder for model in models.values()}) > 1:
        raise ConfigError("a pair cannot mix encoder-decoder and decoder-only models: " + ", ".join(map(str, roles)))
    return models


def require_shared_tokenizer(models: Mapping[str, ResolvedModel], base: Path) -> None:
    """Raise ConfigError, naming two models, if their tokenizers differ. No weights are loaded.

    Tokenizers that are not on this machine are not compared, nor are models with random weights, which share one tokenizer.
    """
    tokenizers = _tokenizers(
        {role: (model.spec, model.revision) for role, model in models.items() if model.weights == "real"}, base
    )
    for role, tokenizer in tokenizers.items():
        last = list(tokenizers)[-1]
        require_same_tokenizer(tokenizers[last], tokenizer, last, role)


def with_other_tokenizer(pair: Pair, base: Path) -> set[str]:
    """Return the models whose tokenizer differs from the last one's. Empty if one of them is not on this machine."""
    specs = pair.models.values()
    if pair.weights != "real" or not all(
        folder(spec.path, base) or try_to_load_from_cache(spec.path, spec.gguf_file or CONFIG_FILE) for spec in specs
    ):
        return set()
    tokenizers = _tokenizers({role: (spec, spec.revision) for role, spec in pair.models.items()}, base)
    last = list(pair.models)[-1]
    return {role for role, each in tokenizers.items() if not is_same_tokenizer(tokenizers.get(last, each), each)}


def _tokenizers(specs: Mapping[str, tuple[ModelSpec, str]], base: Path) -> dict[str, PreTrainedTokenizerBase]:
    """Return the tokenizers of models by role, one per source. Empty if there is one source, or if one is not here."""
    sources: dict[tuple[str, str, str], str] = {}
    for role, (spec, revision) in specs.items():
        sources.setdefault((str(folder(spec.path, base) or spec.path), revision, spec.gguf_file), role)
    if len(sources) < 2:
        return {}
    try:
        return {role: _tokenizer(role, *source) for source, role in sources.items()}
    except MissingAsset:
        return {}


@lru_cache(maxsize=16)
def _tokenizer(role: str, source: str, revision: str, gguf_file: str) -> PreTrainedTokenizerBase:
    return load_tokenizer(role, source, revision or None, gguf_file)


@contextmanager
def _errors_about_folders(pair: Pair, roles: Iterable[str], base: Path) -> Iterator[None]:
    """Add advice to errors about models that are not here.

    Raises MissingAsset for a folder without a model, and appends the nearest folder to the error for a model that is neither
    here nor on the hub.
    """
    paths = {role: pair.models[role].path for role in roles}
    for role, path in paths.items():
        local = folder(path, base)
        if local and not pair.models[role].gguf_file and not (local / CONFIG_FILE).is_file():
            if files := sorted(file.name for file in local.iterdir() if is_gguf(file.name) and file.is_file()):
                raise MissingAsset(
                    f"model '{role}': no {CONFIG_FILE} in {local}; help: gguf_file = \"{files[0]}\" reads its GGUF file"
                )
            inner = sorted(file.parent.name for file in local.glob(f"*/{CONFIG_FILE}"))
            where = f"one of its folders: {', '.join(inner)}" if inner else "a folder that save_pretrained has written"
            raise MissingAsset(f"model '{role}': no {CONFIG_FILE} in {local}; help: {where}")
    try:
        yield
    except MissingAsset as error:
        for role, path in paths.items():
            if f"model '{role}'" in str(error) and (near := _nearest(path, base)):
                raise MissingAsset(f"{error}; did you mean the folder {near}?") from None
        raise


def _nearest(path: str, base: Path) -> Path | None:
    """Return the folder with the most similar name next to a path that is no folder; None if there is none."""
    if folder(path, base):
        return None
    for parent in dict.fromkeys((base / Path(path).expanduser().parent, Path(path).expanduser().parent)):
        names = [path.name for path in parent.iterdir() if (path / CONFIG_FILE).is_file()] if parent.is_dir() else []
        if near := get_close_matches(Path(path).name, names, n=1):
            return parent / near[0]
    return None


def _resolve_model(role: str, pair: Pair, base: Path, on: Execution) -> ResolvedModel:
    spec = pair.models[role]
    local = folder(spec.path, base)
    device = device_of_model(role, spec, on.device, on.elsewhere)
    dtype = dtype_of(on.dtype if spec.dtype == "auto" else spec.dtype, device)
    commit = checksum = ""
    generation = None
    if on.elsewhere:
        try:
            config = _architecture_config(spec, local)
        except (ConfigError, MissingAsset) as error:
            raise type(error)(f"model '{role}': {error}") from None
    elif pair.weights == "dummy":
        config = _architecture_config(spec, local)
        if quantization_method(config):
            del config.quantization_config  # random weights are not quantized
    else:
        source = str(local or spec.path)
        try:
            commit = "" if local else commit_of(spec.path, spec.revision or None, spec.gguf_file or CONFIG_FILE)
            config = read_config(source, commit or None, spec.gguf_file)
        except MissingAsset as error:
            raise MissingAsset(f"model '{role}': {error}") from None
        except Exception as error:  # any error that a library raises for a damaged file
            raise unreadable(role, source, error, spec.gguf_file) from None
        checksum = local_checksum(local, spec.gguf_file) if local else ""
        if spec.generation == "checkpoint":
            try:
                generation = _generation_config(source, commit, config)
            except Exception as error:  # any error that a library raises for a damaged file
                raise unreadable(role, source, error) from None
    narrow = None
    if spec.cost:
        if method := quantization_method(config):
            raise ConfigError(
                f"model '{role}': cost: {spec.path} is quantized already, by {method}, and cannot be widened"
            )
        try:
            narrow, config = config, widened(config, spec.cost, dtype)
        except ConfigError as error:
            raise ConfigError(f"model '{role}': {error}") from None
    architecture = Architecture(config)
    choice = spec.engine if on.engine == "auto" else on.engine
    try:
        engine = engine_of(choice, spec, architecture, device)
    except ValueError as error:
        where = f"model '{role}': engine = '{choice}'" if on.engine == "auto" else f"--engine {choice}: model '{role}'"
        raise ConfigError(f"{where}: {error}") from None
    if spec.quantization:
        _require_quantizable(role, spec, config, device, on.elsewhere)
    template = chat_template(spec.chat_template, base) if spec.chat_template else None
    model = ResolvedModel(
        spec,
        architecture,
        dtype,
        engine,
        pair.weights,
        commit,
        checksum,
        template,
        local is not None,
        generation,
        narrow,
    )
    _require_model(role, model)
    return model


def _generation_config(source: str, commit: str, config: PreTrainedConfig) -> GenerationConfig:
    """Return the generation config of a checkpoint; of one without the file, what its config says.

    Raises the error of transformers for a file that cannot be read.
    """
    is_there = (
        (Path(source) / GENERATION_CONFIG_NAME).is_file()
        if Path(source).is_dir()
        else cached_file(
            source, GENERATION_CONFIG_NAME, revision=commit or None, _raise_exceptions_for_missing_entries=False
        )
    )
    if not is_there:
        return GenerationConfig.from_model_config(config)
    return GenerationConfig.from_pretrained(source, revision=commit or None)


def _require_model(role: str, model: ResolvedModel) -> None:
    """Raise ConfigError if a config describes no model that could decode a token, or one with recurrent states."""
    try:
        is_recurrent = getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(model.config), None), "_is_stateful", False)
    except Exception:  # any error of a library that the family's module imports; loading the model reports it
        is_recurrent = False
    if is_recurrent:
        raise ConfigError(
            f"model '{role}': {model.spec.path} is a {model.architecture.family} model, and its recurrent states cannot go"
            " back to an earlier token, as after a rejected draft; docs/engines.md lists what is supported"
        )
    rope = getattr(model.config.get_text_config(decoder=True), "rope_parameters", None) or {}
    if "mrope_section" in rope:
        raise ConfigError(
            f"model '{role}': {model.spec.path} is a {model.architecture.family} checkpoint, whose positions depend on"
            " pictures (M-RoPE); help: a text model of the same family"
        )
    try:
        smallest = min(vars(model.architecture.shape).values())
        if (
            smallest >= 1 and model.size.parameters and model.weights == "dummy"
        ):  # else loading the weights checks the sizes
            _try_forward(model.config)
    except Exception as error:  # any error that transformers raises for an impossible value
        if isinstance(error, RuntimeError) and "Meta" in str(error):
            return  # torch lacks a meta kernel, which says nothing about the config
        why = f"{type(error).__name__}: {first_line(error)}"
        raise ConfigError(f"model '{role}': the config of {model.spec.path} describes no model: {why}") from None
    if smallest < 1:
        raise ConfigError(
            f"model '{role}': the config of {model.spec.path} describes no model: {model.architecture.shape}"
        )


def _try_forward(config: PreTrainedConfig) -> None:
    """Run two tokens through a model on the meta device. Raises the error of transformers if sizes do not fit."""
    with CONSTRUCTION, torch.device("meta"):
        ids = torch.zeros(1, 2, dtype=torch.long)
        model = class_of(config).from_config(config)
        model(input_ids=ids, **({"decoder_input_ids": ids} if config.is_encoder_decoder else {}))


def _require_quantizable(
    role: str, spec: ModelSpec, config: PreTrainedConfig, device: torch.device, elsewhere: bool
) -> None:
    """Raise ConfigError for a model that is quantized already or has nothing to quantize; MissingAsset without torchao."""
    where = f"model '{role}': quantization = '{spec.quantization}'"
    method, is_a8 = quantization_method(config), not spec.quantization.weights
    if method and not is_a8:
        raise ConfigError(
            f"{where}: {spec.path} is quantized already, by {method}; leave the key out, or write 'a8' to round the inputs of"
            " its layers to 8 bits"
        )
    if is_a8 and not method:
        raise ConfigError(
            f"{where}: {spec.path} is not quantized, and a8 only rounds inputs; write 'int8-a8' or 'int4-a8' to quantize"
            " weights too"
        )
    if method:
        if unread(config, device):
            raise ConfigError(
                f"{where}: transformers loads this checkpoint here, which rounds no inputs; leave the key out"
            )
        return
    if not elsewhere:
        torchao()
    with CONSTRUCTION, torch.device("meta"):
        model = class_of(config).from_config(config)
    if layers(model, spec.quantization):
        return
    widths = sorted({layer.in_features for layer in linear_layers(model).values()})
    if not widths:
        raise ConfigError(f"{where}: {config.model_type} has no linear layer (GPT-2 uses Conv1D layers)")
    fitting = _fitting_kind(spec.quantization, widths)
    raise ConfigError(
        f"{where}: its groups divide the inputs of no linear layer of {config.model_type}, which have"
        f" {', '.join(map(str, widths))} inputs" + (f"; help: quantization = '{fitting}'" if fitting else "")
    )


def _fitting_kind(kind: QuantizationKind, widths: Sequence[int]) -> QuantizationKind | None:
    """Return the most similar kind that quantizes a layer of these inputs: with smaller groups, or else int8."""
    smaller = [] if kind.weights == "nf4" else [replace(kind, group=group) for group in FINER]
    return next((each for each in (*smaller, QuantizationKind("int8")) if any(map(each.group_of, widths))), None)


def _architecture_config(spec: ModelSpec, local: Path | None) -> PreTrainedConfig:
    """Return a local folder's architecture, or the one known for a hub id, with the spec's changes."""
    if local and spec.gguf_file:
        try:
            return read_config(local, None, spec.gguf_file)
        except Exception as error:  # any error that a library raises for a damaged file
            raise error if isinstance(error, MissingAsset) else MissingAsset(in_one_line(error)) from None
    if local:
        return simulated.architecture_in(local, spec.config)
    return simulated.architecture(spec.path, spec.config)
