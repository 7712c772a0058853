"""Real servers with the bundled models. They are started by `make test-servers` alone, which builds their environments."""

import json
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "specbench/tiny/models"
LLAMACPP, VLLM = (ROOT / f"build/{name}/bin/python" for name in ("llamacpp", "vllm"))
READY_SECONDS = 600.0
TEMPLATE = "{%- for message in messages -%}{{ message.content }}{%- endfor -%}"

Start = Callable[..., str]


def _require(python: Path) -> None:
    if not os.environ.get("SPECBENCH_SERVERS"):
        pytest.skip("real servers are started by `make test-servers` alone")
    if not python.exists():
        pytest.skip(f"{python.parents[1]} is missing; help: make test-servers")


@contextmanager
def _serving(command: list[str], url: str, log: Path, **environment: str) -> Iterator[str]:
    """Start a server in a process group of its own, and end the group."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **environment},
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + READY_SECONDS
        while True:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() < deadline, f"{url} did not answer"
            try:
                with urllib.request.urlopen(f"{url}/v1/models", timeout=5.0):
                    break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()  # also ends llama.cpp's server
        os.killpg(process.pid, 15)
        try:
            process.wait(20.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory, wide: Path) -> dict[str, Path]:
    """The bundled target, the middle model, and `wide` as GGUF files."""
    _require(LLAMACPP)
    folder = tmp_path_factory.mktemp("gguf")
    sources = {"target": MODELS / "target", "middle": MODELS / "middle", "wide": wide}
    files = {name: folder / f"{name}.gguf" for name in sources}
    for name, file in files.items():
        script = ROOT / "scripts/llamacpp/to_gguf.py"
        subprocess.run([LLAMACPP, script, sources[name], file], check=True, capture_output=True)
    return files


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose heads have 64 dimensions, which llama.cpp's quantized caches need."""
    folder = tmp_path_factory.mktemp("wide") / "model"
    shutil.copytree(MODELS / "target", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = AutoConfig.from_pretrained(MODELS / "target")
    config.update(
        {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 4,
         "intermediate_size": 512, "initializer_range": 0.12}
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def llama_cpp(gguf: dict[str, Path], tmp_path: Path) -> Iterator[Start]:
    """A function that starts llama.cpp's server with options of scripts/llamacpp/serve_gguf.py, and returns its URL."""
    with ExitStack() as stack:

        def start(*options: str, draft: bool = False, model: str = "target") -> str:
            port = _free_port()
            command = [str(LLAMACPP), str(ROOT / "scripts/llamacpp/serve_gguf.py"), str(gguf[model])]
            command += ["--port", str(port), "--parallel", "8", "--context", "16384", "--reuse-prompts", *options]
            command += ["--draft", str(gguf["middle"])] if draft else []
            return stack.enter_context(_serving(command, f"http://127.0.0.1:{port}", tmp_path / f"{port}.log"))

        yield start


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """A function that starts vLLM on a CPU with a speculative config or none, and returns its URL."""
    _require(VLLM)
    folder = tmp_path_factory.mktemp("vllm")
    (folder / "chat.jinja").write_text(TEMPLATE)
    environment = {
        "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_SERVER_DEV_MODE": "1",
    }  # fmt: skip
    with ExitStack() as stack:
        started: dict[str, str] = {}

        def start(config: dict[str, object] | None = None) -> str:
            key = json.dumps(config)
            if key not in started:
                port = _free_port()
                command = [
                    str(VLLM), "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODELS / "target"),
                    "--served-model-name", "t", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
                    "--max-model-len", "2048", "--max-num-seqs", "8", "--enable-per-request-metrics",
                    "--enable-prompt-tokens-details", "--max-logprobs", "1024", "--chat-template", str(folder / "chat.jinja"),
                ]  # fmt: skip
                if config:
                    command += [
                        "--per-request-spec-decode-metrics",
                        "detailed",
                        "--speculative-config",
                        json.dumps(config),
                    ]
                log = folder / f"{port}.log"
                started[key] = stack.enter_context(_serving(command, f"http://127.0.0.1:{port}", log, **environment))
            return started[key]

        yield start
