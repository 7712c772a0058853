"""Every option changes what is measured."""

from dataclasses import fields, replace
from pathlib import Path

import pytest

from specbench.config.options import Options
from specbench.config.presets import parse_override
from specbench.config.request import Request
from specbench.config.shard import Shard
from specbench.errors import ConfigError
from specbench.resolution.resolve import resolve

BASE = Options(data=(("", "synthetic"),), limit=4, device="cpu", dtype="float32")
VALUES = {
    "limit": 3,
    "gamma": (("", (3,)),),
    "max_new_tokens": 9,
    "on_overflow": "truncate-left",
    "chat": "auto",
    "ignore_eos": True,
    "temperature": 0.5,
    "top_k": 7,
    "top_p": 0.5,
    "seed": 1,
    "repeats": 1,
    "dtype": "bfloat16",
    "engine": "eager",
    "overrides": (parse_override("task.shots=2"),),
    "over": (parse_override("method.proposer.gamma=[2, 3]", "--over"),),
    "plugins": (("plugin.py", "0" * 64),),
    "shard": Shard(1, 2),
}
# A file, random rows, a GPU, a folder, a checkpoint that samples: each has a test of its own
ELSEWHERE = {"data", "sample", "device", "heads", "sampling"}
SAME_RUN = {"threads": 2}  # options of the machine: a folder's environment has them


def keys(options):
    request = Request(methods=("sd",), pair="tiny", tasks=("gsm8k",), options=options, out=Path())
    return sorted(run.spec.key for run in resolve(request).runs)


def test_every_option_has_a_value_here():
    assert {field.name for field in fields(Options)} == VALUES.keys() | ELSEWHERE | SAME_RUN.keys()


@pytest.mark.parametrize("name", VALUES)
def test_an_option_changes_the_run(name):
    assert keys(replace(BASE, **{name: VALUES[name]})) != keys(BASE)


@pytest.mark.parametrize("name", SAME_RUN)
def test_an_option_of_the_machine_leaves_the_hash_and_the_config_of_a_run(name):
    assert keys(replace(BASE, **{name: SAME_RUN[name]})) == keys(BASE)


@pytest.mark.parametrize("threads", [-1, 1025])
def test_a_number_of_threads_out_of_range_is_rejected(threads):
    with pytest.raises(ConfigError, match=f"threads = {threads}"):
        Options(threads=threads)
