"""Chat templates that raise, do not parse, or call what does not exist; templates and prompts that cannot be used."""

import random
from pathlib import Path

from tests.faults.attack import Outcome, here

FAULTS = (
    "{{ raise_exception('Only user roles') }}",
    "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}",
    "{{ raise_exception('\x1b[31mred\n\u202ereversed') }}",
    "{{ raise_exception() }}",
    "{{ raise_exception(messages) }}",
    "{% for m in messages %}{{ m['content'] }",
    "{% for m in messages %}{{ m.content }}",
    "{% if %}{% endif %}",
    "{% unknown %}",
    "{{ messages | unknown }}",
    "{{ messages is unknown }}",
    "{{ missing.name }}",
    "{{ missing() }}",
    "{{ messages[9].content }}",
    "{{ messages.content.text }}",
    "{{ messages + 1 }}",
    "{{ 1 / 0 }}",
    "{{ messages[0].content | int(5, 5, 5, 5) }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% include 'other.jinja' %}",
    "{% import 'other.jinja' as other %}",
    "{{ strftime_now(5) }}",
    "{% for i in range(10**9) %}{{ i }}{% endfor %}",
    "{% set x = namespace() %}{{ x.y.z }}",
    "{{ 'x' * 10**12 }}",
)
COMMANDS = (["run", "-n", 1, "--repeats", 1], ["verify", "-n", 1], ["trace"], ["run", "-n", 1, "--chat", "required"])


def failing(trials: int, seed: int, folder: Path) -> Outcome:
    """Use a template that fails: exit code 2 and one line before anything is decoded; with `--chat off` it is not used."""
    from specbench.config.pair import PACKAGE

    outcome = Outcome()
    for trial in range(trials):
        rng, where = random.Random(f"{seed}:{trial}"), folder / f"trial-{trial}"
        where.mkdir()
        template = FAULTS[(seed + trial) % len(FAULTS)]
        (where / "own.jinja").write_text(template)
        model = PACKAGE / "tiny" / "models" / "target"
        (where / "pair.toml").write_text(f'[models.target]\npath = "{model}"\nchat_template = "own.jinja"\n')
        (where / "rows.jsonl").write_text('{"prompt": "One"}\n')
        command = COMMANDS[trial // len(FAULTS) % len(COMMANDS)] if trial >= len(FAULTS) else rng.choice(COMMANDS)
        own = ["-m", "ar", "-p", "pair.toml", "-t", "prompts", "--data", "rows.jsonl", "--max-new-tokens", 2]
        chat = [] if "--chat" in command else ["--chat", "auto"]
        done = here([*command, *own, *chat], where)
        problems = done.problems({2})
        if list(where.glob("results/*/samples.jsonl")):
            problems.append("decoded before the template was checked")
        shown = done.err[done.err.find("error[") :].strip().splitlines()  # progress comes before it
        if not shown or not shown[0].startswith("error[") or len(shown) > 3:
            problems.append(f"no short error: {shown}")
        if "required" not in command:
            problems += here([*command, *own, "--chat", "off"], where).problems({0, 6})
        outcome.add(f"{command[0]} {template!r}, trial {trial}", problems)
    return outcome
