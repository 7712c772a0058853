"""Write the example of the README from one run: `make readme`, or `python -m scripts.readme_example`.

The run is kept in results/readme/run.zip. From it come the output in README.md and the chart results/readme/speedup.svg; with
`--measure` it is measured first. `tests/test_readme.py` compares the numbers of the README with the run.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

COMMAND = "specbench run -p tiny-7b -m sd,eagle,dflash,pld -t gsm8k -n 40 --temperature 1"
FOLDER = Path("results/readme")
ARCHIVE, CHART, PAGE = FOLDER / "run.zip", FOLDER / "speedup.svg", Path("README.md")
COLUMNS = 100


def specbench(*words: object, cwd: Path) -> str:
    """Return what a command prints on a terminal of COLUMNS columns. Exits with its message if it fails."""
    command = [sys.executable, "-m", "specbench", *map(str, words)]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def main() -> None:
    """Measure the run if it is wanted, and write the README's output and chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the run first, on an idle machine")
    measure = parser.parse_args().measure
    home = Path.cwd()
    with TemporaryDirectory() as name:
        where = Path(name)
        if measure:
            specbench(*shlex.split(COMMAND)[1:], cwd=where)
            run = next(path.parent for path in where.glob("results/*/run.toml"))
            specbench("export", run, "-o", home / ARCHIVE, cwd=where)
        PAGE.write_text(with_output(PAGE.read_text(encoding="utf-8"), output(home / ARCHIVE)), encoding="utf-8")
        unpacked = where / "unpacked"
        ZipFile(home / ARCHIVE).extractall(unpacked / "results")
        specbench("report", "--plots", "plots", "--plot-format", "svg", cwd=unpacked)
        (chart,) = (unpacked / "plots").glob("*speedup*.svg")
        shutil.copy(chart, home / CHART)


def output(archive: Path) -> str:
    """Return what `specbench report` prints of the run in an archive."""
    with TemporaryDirectory() as name:
        ZipFile(archive).extractall(Path(name) / "results")  # not imported: the run is this project's own
        lines = specbench("report", cwd=Path(name)).strip().splitlines()
    return "\n".join(line.rstrip() for line in lines)


def with_output(page: str, text: str) -> str:
    """Return the README with the command and its output in the block that begins with `$ specbench run`."""
    block = re.compile(r"```\n\$ specbench run .*?\n```", re.DOTALL)
    assert len(block.findall(page)) == 1
    return block.sub(lambda _: f"```\n$ {COMMAND}\n{text}\n```", page)


if __name__ == "__main__":
    main()
