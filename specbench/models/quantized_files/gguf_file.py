"""GGUF files: their config, names and types, and their tensors as transformers names them.

The names and the order of rows are transformers' own (`transformers.modeling_gguf_pytorch_utils`). What transformers does not
read from a GGUF file is added here: special tokens, widths of heads, windows, and the factors of rotary positions.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.modeling_gguf_pytorch_utils import (
    TENSOR_PROCESSORS,
    LlamaTensorProcessor,
    TensorProcessor,
    get_gguf_hf_weights_map,
)
from transformers.utils import cached_file

from specbench.config.construct import Table
from specbench.errors import MissingAsset, hint
from specbench.files import in_one_line
from specbench.models.quantized_files.gguf_blocks import BLOCK_BYTES, FLOATS

QUANT_METHOD = "gguf"
HELP = "a GGUF file needs the package gguf, which is not installed\n  help: pip install 'specbench[gguf]'"
ROPE_FACTORS = "rope_freqs.weight"  # by which llama.cpp divides the frequencies of rotary positions, (d / 2,)
PLAIN_SCALING = ("", "none")
IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "padding_token_id": "pad_token_id"}
ENDS = ("eos_token_id", "eot_token_id")


def package() -> Any:
    """Return the package gguf. Raises MissingAsset, with installation help, without it."""
    try:
        import gguf  # optional
    except ImportError:
        raise MissingAsset(HELP) from None
    return gguf


def located(source: str | Path, name: str, revision: str | None) -> Path:
    """Return the path of a file in a folder, or of a hub id, from which it is fetched.

    Raises MissingAsset, with the nearest name, if the folder lacks it, and OSError if it cannot be fetched.
    """
    if Path(source).is_dir():
        path = Path(source) / name
        if not path.is_file():
            names = [file.name for file in Path(source).glob("*.gguf")]
            raise MissingAsset(f"no {name} in {source}{hint(name, names, 'its .gguf files')}")
        return path
    return Path(cached_file(source, name, revision=revision))


class GgufFile:
    """An open GGUF file whose tensors are mapped into memory."""

    def __init__(self, path: Path) -> None:
        """Open a file. Raises MissingAsset if it is damaged or incomplete."""
        reader = package().GGUFReader
        try:
            self._reader = reader(path, "c")  # copy-on-write, so that torch can view the mapped bytes
        except Exception as error:  # any error that the library raises for a damaged file
            why = f"{type(error).__name__}: {in_one_line(error)}"
            raise MissingAsset(
                f"{path} cannot be loaded: it may be damaged or incomplete ({why}); help: copy or fetch it again"
            ) from None
        self.architecture = str(self.value("general.architecture") or "")
        self.tensors: dict[str, Any] = {tensor.name: tensor for tensor in self._reader.tensors}

    def value(self, key: str) -> Any:
        """Return a value of the metadata; None if the file lacks it."""
        field = self._reader.fields.get(key)
        return None if field is None else field.contents()

    @property
    def has_plain_layout(self) -> bool:
        """Whether transformers only renames weights, permutes rows, and changes norms.

        Other architectures have transposed, merged or split weights.
        """
        kind = TENSOR_PROCESSORS.get(self.architecture, TensorProcessor)
        has_experts = any("_exps." in name for name in self.tensors)
        return kind.process in (TensorProcessor.process, LlamaTensorProcessor.process) and not has_experts

    def names(self, model: Any) -> dict[str, str]:
        """Return the name in a model of transformers of each tensor of the file that it has."""
        names = get_gguf_hf_weights_map(model, self._processor(model.config), self.architecture)
        return {name: names[name] for name in self.tensors if name in names}

    def unread(self, model: Any) -> set[str]:
        """Return the tensors of the file that the model lacks, such as biases that its config does not have."""
        return set(self.tensors) - set(self.names(model)) - {ROPE_FACTORS}

    def types(self, model: Any) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the types of the weights that stay quantized, by module, and the types that are dequantized.

        A weight stays quantized if it is the matrix of a linear layer or an embedding, of a type in BLOCK_BYTES.
        """
        kept: dict[str, str] = {}
        others: set[str] = set()
        for name, renamed in self.names(model).items():
            module, _, last = renamed.rpartition(".")
            kind = self.tensors[name].tensor_type.name
            is_plain = last == "weight" and type(model.get_submodule(module)) in (nn.Linear, nn.Embedding)
            if kind in BLOCK_BYTES and is_plain:
                kept[module] = kind
            elif kind not in FLOATS:
                others.add(kind)
        return kept, tuple(sorted(others))

    def state(self, model: Any, kept: Mapping[str, str], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of a model by name: blocks (out, bytes) of the modules in `kept`, other weights in `dtype`.

        Rows of blocks are in the file's order, see `rows`.
        """
        processor = self._processor(model.config)
        for name, renamed in self.names(model).items():
            stored = self.tensors[name]
            if renamed.removesuffix(".weight") in kept:
                yield renamed, torch.from_numpy(stored.data)
                continue
            values = package().quants.dequantize(stored.data, stored.tensor_type)
            moved = np.ascontiguousarray(processor.process(weights=values, name=name).weights)
            yield renamed, torch.from_numpy(moved).to(dtype, copy=True)  # not a view of the file

    def rows(self, model: Any, kept: Mapping[str, str]) -> dict[str, Tensor]:
        """Return the file's row for each row of the modules in `kept` whose rows are in another order."""
        processor, orders = self._processor(model.config), dict[str, Tensor]()
        for name, renamed in self.names(model).items():
            module = renamed.removesuffix(".weight")
            if module in kept:
                numbers = np.arange(len(self.tensors[name].data))
                moved = processor.process(weights=numbers, name=name).weights
                if not np.array_equal(moved, numbers):
                    orders[module] = torch.from_numpy(moved.copy())
        return orders

    def rope_factors(self) -> Tensor | None:
        """Return the factors that divide the frequencies of rotary positions, (d / 2,); None if the file has none."""
        found = self.tensors.get(ROPE_FACTORS)
        return None if found is None else torch.from_numpy(np.array(found.data, np.float32))

    def _processor(self, config: Any) -> TensorProcessor:
        return TENSOR_PROCESSORS.get(self.architecture, TensorProcessor)(config=config.to_dict())


def complete_config(config: PreTrainedConfig, file: GgufFile, model: Any) -> None:
    """Add to a config what transformers does not read of a GGUF file. `model` is the architecture on the meta device.

    Raises ValueError for rotary positions that are scaled in a way which transformers ignores.
    """
    scaling = str(file.value(f"{file.architecture}.rope.scaling.type") or "")
    known = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if scaling not in PLAIN_SCALING and known == "default":
        raise ValueError(f"its rotary positions are scaled ({scaling}), which is not read from a GGUF file")
    text = config.get_text_config(decoder=True)
    if (width := file.value(f"{file.architecture}.attention.key_length")) and hasattr(text, "head_dim"):
        text.head_dim = int(width)
    window = file.value(f"{file.architecture}.attention.sliding_window")
    if window and getattr(text, "sliding_window", 0) is None:
        text.sliding_window = int(window)
    for key, name in IDS.items():
        if (token := file.value(f"tokenizer.ggml.{key}")) is not None:
            setattr(config, name, int(token))
    ends = dict.fromkeys(int(token) for key in ENDS if (token := file.value(f"tokenizer.ggml.{key}")) is not None)
    if len(ends) > 1:
        config.eos_token_id = list(ends)
    kept, others = file.types(model) if file.has_plain_layout else ({}, ())
    config.quantization_config = table_of_gguf(kept, others, file.has_plain_layout)


def table_of_gguf(kept: Mapping[str, str], dequantized: tuple[str, ...], is_plain: bool) -> Table:
    """Return the quantization config of a GGUF file. transformers loads the file itself unless `is_plain`."""
    return {"quant_method": QUANT_METHOD, "types": dict(kept), "dequantized": list(dequantized), "is_plain": is_plain}


def divide_frequencies(model: Any, factors: Tensor) -> None:
    """Divide the frequencies of a model's rotary positions by factors (d / 2,). Raises MissingAsset if they do not fit."""
    rotary = getattr(model.get_decoder(), "rotary_emb", None)
    frequencies = getattr(rotary, "inv_freq", None)
    if frequencies is None or frequencies.shape != factors.shape:
        raise MissingAsset(f"{ROPE_FACTORS} does not fit the rotary positions of {type(model).__name__}")
    for name in ("inv_freq", "original_inv_freq"):
        if isinstance(getattr(rotary, name, None), Tensor):
            setattr(rotary, name, frequencies / factors)
