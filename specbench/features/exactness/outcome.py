"""The possible results of a test of exactness, whatever was tested: a method in this process, or a server."""

from enum import StrEnum

from specbench.errors import ExitCode


class Outcome(StrEnum):
    """What was found. Only `exact` also says that departures above the limits would have been found."""

    exact = "exact"  # no check failed, controls were rejected, and departures above the limits would have been found
    unfound = "no departure found"  # no check failed, but departures above the limits would have been missed
    differs = "differs"  # outputs do not follow the distribution
    inconclusive = "inconclusive"  # no check failed, but a control was not rejected, or too little could be tested
    undeclared = "no distribution"  # there is no distribution to compare with

    @property
    def words(self) -> str:
        """The first words of a verdict's line."""
        return {Outcome.differs: "NOT exact", Outcome.undeclared: "cannot be verified"}.get(self, self.value)

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of a command that tests exactness."""
        codes = {
            Outcome.differs: ExitCode.REGRESSION,
            Outcome.inconclusive: ExitCode.INCONCLUSIVE,
            Outcome.undeclared: ExitCode.INCONCLUSIVE,
        }
        return codes.get(self, ExitCode.OK)

    @property
    def rank(self) -> int:
        """The place from best to worst. Results that differ in their power alone have the same place."""
        return {Outcome.differs: 2, Outcome.inconclusive: 1, Outcome.undeclared: 1}.get(self, 0)
