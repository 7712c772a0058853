"""All attacks, the longest first, and the page that a long run writes."""

import platform
from collections.abc import Mapping

from specbench.machine.hardware import fingerprint
from specbench.reporting.formats.writers import markdown_list, markdown_table
from specbench.reporting.tables import Table
from tests.faults import (
    answers,
    configs,
    disks,
    endpoints,
    exchanged,
    files,
    folders,
    heads,
    kills,
    models,
    plugins,
    processes,
    programs,
    templates,
    threads,
    values,
)  # fmt: skip
from tests.faults.attack import Attack, Outcome
from tests.fixtures.hostile import HOSTILE

ATTACKS = (
    Attack(
        "SIGKILL",
        "main process, group, worker, sandbox, suite with a judge, train, gate, verify",
        100,
        1,
        kills.sigkill,
    ),
    Attack("fuzzed TOML", "methods, pairs, tasks and suites, planned", 10_000, 60, configs.fuzzed),
    Attack(
        "server answers",
        "every address of vLLM, llama.cpp, SGLang and OpenAI: read, logged, resumed, summed up",
        2_000,
        100,
        answers.fuzzed,
    ),
    Attack(
        "exchange files",
        "profiles of NVIDIA, vLLM, llama.cpp and AIPerf, read and compared",
        500,
        60,
        exchanged.fuzzed,
    ),
    Attack("SIGINT", "the same commands", 30, 1, kills.interrupt),
    Attack("SIGTERM", "the same commands", 30, 1, kills.terminate),
    Attack("damaged folders", "a file of a run, suite, snapshot or head, and a command", 2_000, 12, folders.damaged),
    Attack(
        "hostile programs",
        "all programs of tests/fixtures/hostile.py, under bwrap and unshare",
        198,
        8,
        programs.hostile,
    ),
    Attack(
        "several processes",
        "two or three in one run, suite or head, tasks in either order, with and without --wait",
        24,
        1,
        processes.together,
    ),
    Attack(
        "damaged heads",
        "keys, weights, tables and files of every bundled head, and a run that uses it",
        300,
        10,
        heads.damaged,
    ),
    Attack("full disk", "a tmpfs without room, then with, then read-only", 12, 1, disks.full),
    Attack("file size limit", "RLIMIT_FSIZE", 12, 1, disks.limited),
    Attack("threads", "two to four calls of the Python API at once, some of which fail", 40, 1, threads.together),
    Attack(
        "values at the edge",
        "machines, launchers, lock files, arguments of the Python API",
        400,
        6,
        values.at_the_edge,
    ),
    Attack(
        "faulty plugins", "methods, drafts, targets, graders, and files that cannot be imported", 78, 6, plugins.faulty
    ),
    Attack("chat templates", "that raise, do not parse, or call what does not exist", 104, 3, templates.failing),
    Attack("judges", "endpoints that answer wrongly, too much, too slowly or not at all", 46, 3, endpoints.failing),
    Attack(
        "odd files", "export to and import from devices, pipes, links, and archives that are none", 40, 5, files.odd
    ),
    Attack("hidden characters", "in the names and texts of presets, arguments and prompts", 32, 2, files.hidden),
    Attack("broken checkpoints", "weights, configs, tokenizers", 39, 13, models.broken),
)


def page(done: Mapping[Attack, Outcome], seed: int, minutes: float, earlier: str = "") -> str:
    """The outcome of a long run, as Markdown. Attacks that did not run keep their rows of an earlier page."""
    env = fingerprint()
    revision = f"{env['git'].get('revision', 'unknown')[:9]}{' with changes' if env['git'].get('dirty') else ''}"
    rows = {row[0]: row for row in _rows_of(earlier)}
    rows |= {
        attack.name: [attack.name, attack.what, str(each.trials), each.skipped or str(len(each.failures)), revision]
        for attack, each in done.items()
    }
    failures = [failure for each in done.values() for failure in each.failures]
    return "\n".join([
        "# Fault injection", "",
        f"Outcome of `make faults`, seed {seed}. Each attack runs specbench commands and interferes with them, or damages the"
        " files that they read. A trial fails if a sample is lost, duplicated or changed, a process survives, a traceback or"
        " an undocumented exit code appears, a number differs without a warning, or a hostile program passes.", "",
        markdown_table(
            Table(
                "",
                ["attack", "target", "trials", "failures", "revision"],
                [rows[attack.name] for attack in ATTACKS if attack.name in rows],
            )
        ), "",
        markdown_list(failures) if failures else "No trial failed.", "",
        f"The {len(HOSTILE)} hostile programs: {', '.join(HOSTILE)}.", "",
        f"The last run took {minutes:.0f} minutes on {env['cores']} cores, Python {platform.python_version()}, torch"
        f" {env['packages'].get('torch')}, {env['os']}.", "",
    ])  # fmt: skip


def _rows_of(page: str) -> list[list[str]]:
    """The rows of a page."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    return [row for row in rows if row[0] in {attack.name for attack in ATTACKS}]
