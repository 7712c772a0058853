"""`python -m specbench`: the command line, also in the child processes of `gate` and of jobs, which end with their parent."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command line, or measure the batch of requests whose folder follows `--batch`."""
    try:
        from specbench.experiment.batch import ARGUMENT, batch_in, end_with_parent, measure_here

        end_with_parent()
        from specbench.cli import app
        from specbench.cli import main as run_command_line

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
