"""Write every example output from one measurement of `make run`: `make readme`.

The run is kept in results/readme/run.zip; with `--measure` it is measured first. From it come the outputs in README.md and
docs/tutorial.md, the chart results/readme/speedup.svg, and with `--screenshot` results/readme/report.png, for which
Chromium has to be installed. The site's example of an HTML report is written from the same run (scripts/build_docs.py).
`tests/test_example_run.py` compares the pages with the run.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

COMMAND = "specbench run -p tiny-7b -m sd,eagle,dflash,pld -n 6 --repeats 1 --allow-code-execution"  # of `make run`
FORWARDS = "specbench report results/*gsm8k* --full"  # the tutorial shows one of its tables
FORWARDS_TABLE = "Acceptance and forwards"
FOLDER = Path("results/readme")
ARCHIVE, CHART, SCREENSHOT = FOLDER / "run.zip", FOLDER / "speedup.svg", FOLDER / "report.png"
PAGES = (Path("README.md"), Path("docs/tutorial.md"))
COLUMNS = 100
WINDOW = (1240, 1500)  # pixels of the screenshot
BLOCK = re.compile(r"```\n\$ (specbench .*)\n((?:.*\n)*?)```\n")


def specbench(*words: object, cwd: Path) -> str:
    """Return what a command prints on a terminal of COLUMNS columns. Exits with its message if it fails."""
    command = [sys.executable, "-m", "specbench", *map(str, words)]
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def main() -> None:
    """Measure the run with `--measure`, and write the pages and figures that show it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the run first, on an idle machine")
    parser.add_argument("--screenshot", action="store_true", help="write the picture of the HTML report, with Chromium")
    args = parser.parse_args()
    home = Path.cwd()
    if args.measure:
        measure(home / ARCHIVE)
    with runs_of(home / ARCHIVE) as folder:
        for page in PAGES:
            page.write_text(with_outputs(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
        specbench("report", run_shown(folder), "--plots", "plots", "--plot-format", "svg", cwd=folder)
        (chart,) = (folder / "plots").glob("*speedup*.svg")
        shutil.copy(chart, CHART)
        if args.screenshot:
            specbench("report", "results", "-f", "html", "-o", "report.html", cwd=folder)
            photograph(folder / "report.html", home / SCREENSHOT)


def measure(archive: Path) -> None:
    """Measure the runs and export them to an archive."""
    with TemporaryDirectory() as name:
        where = Path(name)
        specbench(*shlex.split(COMMAND)[1:], cwd=where)
        runs = sorted(path.parent for path in where.glob("results/*/run.toml"))
        specbench("archive", "export", *runs, "-o", archive, cwd=where)


@contextmanager
def runs_of(archive: Path) -> Iterator[Path]:
    """Yield a working directory whose `results` folder has the archived runs."""
    with TemporaryDirectory() as name:
        ZipFile(archive).extractall(Path(name) / "results")  # not imported: the runs are this project's own
        yield Path(name)


def run_shown(folder: Path) -> Path:
    """Return the run whose chart and forwards are shown: that of gsm8k."""
    (run,) = (folder / "results").glob("*gsm8k*")
    return run


def output_of(command: str, folder: Path) -> str:
    """Return what a command of a page prints, given the archived runs; of a full report, one of its tables."""
    if command == COMMAND:
        return specbench("report", "results", cwd=folder)
    if command == FORWARDS:
        parts = specbench("report", run_shown(folder), "--full", cwd=folder).split("\n\n")
        at = next(index for index, part in enumerate(parts) if part.endswith(FORWARDS_TABLE))
        return f"{FORWARDS_TABLE}\n\n{parts[at + 1]}"
    return specbench(*shlex.split(command)[1:], cwd=folder)


def shown(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a page that begin with `$`, each with the output that the page shows."""
    return [(found[1], found[2]) for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def with_outputs(page: str, folder: Path) -> str:
    """Return a page with the present output in each block that begins with `$ specbench`."""
    return BLOCK.sub(lambda found: f"```\n$ {found[1]}\n{output_of(found[1], folder)}\n```\n", page)


def photograph(page: Path, picture: Path) -> None:
    """Write a picture of a page. Exits with a message without Chromium."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("--screenshot needs Chromium; help: apt install chromium")
    size = ",".join(map(str, WINDOW))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={size}", f"--screenshot={picture}"]
    with TemporaryDirectory() as profile:
        subprocess.run(
            [browser, *options, f"--user-data-dir={profile}", page.as_uri()], check=True, capture_output=True
        )


if __name__ == "__main__":
    main()
