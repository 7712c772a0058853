"""`python -m specbench`: the command line, also in child processes, which end with their parent."""

import sys
from pathlib import Path


def main() -> None:
    """Run the command line, the batch of requests whose folder follows `--batch`, or the job whose files follow `--job`."""
    try:
        from specbench.experiment.child_process import end_with_parent

        end_with_parent()
        from specbench.cli import app
        from specbench.cli import main as run_command_line
        from specbench.experiment.batch import batch_in, measure_here
        from specbench.experiment.child_process import BATCH, JOB

        if sys.argv[1:2] not in ([BATCH], [JOB]):
            run_command_line()
            return
        from specbench.cli.console import TerminalObserver

        out = Path(sys.argv[2])
        if sys.argv[1] == BATCH:
            app.main(lambda: measure_here(batch_in(out), out, TerminalObserver()))
            return
        from specbench.features.launch.job_request import perform_request

        app.main(lambda: sys.exit(perform_request(out, Path(sys.argv[3]), TerminalObserver())))
    except KeyboardInterrupt:  # the parent reports it
        sys.exit(130)


if __name__ == "__main__":
    main()
