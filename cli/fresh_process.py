"""The process in which `gate` measures: `python -m specbench.cli.fresh_process OUT`, started by `measure_apart`."""

import sys
from pathlib import Path

from specbench.cli.progress import Terminal
from specbench.errors import ExitCode
from specbench.experiment.fresh_process import end_with_parent, measure_here, request_in


def main() -> None:
    try:
        end_with_parent()
        from specbench.cli import app

        out = Path(sys.argv[-1])
        app.main(lambda: measure_here(request_in(out), out, Terminal()))
    except KeyboardInterrupt:  # the parent reports it
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()
