"""`python -m specbench`: the command line, also in child processes, which end with their parent."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command line, or measure the batch of requests whose folder follows `--batch`."""
    try:
        from specbench.experiment.child_process import end_with_parent

        end_with_parent()
        from specbench.cli import app
        from specbench.cli import main as run_command_line
        from specbench.experiment.batch import ARGUMENT, batch_in, measure_here

        if sys.argv[1:2] != [ARGUMENT]:
            run_command_line()
            return
        from specbench.cli.console import TerminalObserver

        out = Path(sys.argv[2])
        app.main(lambda: measure_here(batch_in(out), out, TerminalObserver()))
    except KeyboardInterrupt:  # the parent reports it
        sys.exit(130)


if __name__ == "__main__":
    main()
