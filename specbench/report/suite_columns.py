"""The report columns that only suites show. They are part of the registry in `specbench/report/columns.py`."""

from specbench.report import run_tables as t
from specbench.report.column import Column
from specbench.report.formats import SCORE, TENTHS_OF_PERCENT, TIMES

SUITE_COLUMNS = (
    Column(
        key="deferral_rate", heading="deferral rate", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="The rule rate; for methods without a rule, target forwards/token.",
    ),
    Column(
        key="matching", heading="speed at the large model's quality", clock=t.END_TO_END, format=TIMES, tables=(t.SUITES,),
        definition="The large model's latency / the smallest latency at which the curve reaches its quality.",
    ),
    Column(
        key="best", heading="best quality within its latency", format=SCORE, tables=(t.SUITES,), unit="x 100",
        definition="The best score of a point that is no slower than the large model.",
    ),
    Column(
        key="win_rate", heading="win rate, ties half", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Wins plus half the ties / comparisons, by the judge that the page names.",
    ),
    Column(
        key="wins", heading="wins", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Comparisons in which the judge preferred the method's continuation / comparisons.",
    ),
    Column(
        key="ties", heading="ties", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Comparisons in which the judge preferred neither / comparisons.",
    ),
    Column(
        key="win_rate_spread", heading="win rate, standard deviation", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Standard deviation of the win rate over repeats, as SPRINTER prints it.",
    ),
)  # fmt: skip
