"""The report columns that only suites show. They are part of the registry in `specbench/reporting/columns.py`."""

from specbench.reporting import run_tables as t
from specbench.reporting.column import Column
from specbench.reporting.formats import HUNDREDTHS, SCORE, TENTHS, TENTHS_OF_PERCENT, THOUSANDTHS, TIMES

SUITE_COLUMNS = (
    Column(
        key="proposer_weight", heading="weight of the default proposer", format=HUNDREDTHS, tables=(t.SUITES,),
        definition="The weight of the model that a speculative ensemble lists first, in a mixture.",
    ),
    Column(
        key="proposer_acceptance", heading="acceptance of the default proposer", format=THOUSANDTHS, tables=(t.SUITES,),
        definition="Accepted / tested draft tokens of the model that a speculative ensemble lists first.",
    ),
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
        key="wins", heading="wins", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Comparisons in which the judge preferred the method's continuation / comparisons.",
    ),
    Column(key="length_by_round", heading="accepted length by round", format=HUNDREDTHS, tables=(t.SUITES,)),
    Column(key="length_by_prompt", heading="accepted length by prompt", format=HUNDREDTHS, tables=(t.SUITES,)),
    Column(
        key="length_variance_by_prompt", heading="variance over prompts", format=HUNDREDTHS, tables=(t.SUITES,),
        lower_is_better=True,
    ),
    Column(key="length_variation", heading="coefficient of variation", format=HUNDREDTHS, tables=(t.SUITES,)),
    Column(key="verification_rounds", heading="rounds/generation", format=TENTHS, tables=(t.SUITES,), lower_is_better=True),
    Column(
        key="generation_deviation", heading="ms/generation, standard deviation", clock=t.END_TO_END, format=TENTHS,
        tables=(t.SUITES,), definition="Standard deviation over generations of the time from the prompt to the last token.",
    ),
    Column(key="flops_ratio", heading="baseline's GFLOP / the method's", format=HUNDREDTHS, tables=(t.SUITES,)),
    Column(key="flops_ratio_sd", heading="sd's GFLOP / the method's", format=HUNDREDTHS, tables=(t.SUITES,)),
    Column(
        key="papers_flops_ratio_sd", heading="sd's GFLOP / the method's, paper's count", format=HUNDREDTHS,
        tables=(t.SUITES,),
    ),
    Column(
        key="tau_train", heading="tau_train", format=HUNDREDTHS, tables=(t.SUITES,),
        definition="The threshold of the labels that SPRINTER's verifier was trained on.",
    ),
    Column(
        key="tau_inf", heading="tau_inf", format=HUNDREDTHS, tables=(t.SUITES,),
        definition="The score from which SPRINTER's verifier accepts a token.",
    ),
    Column(
        key="score_per_second", heading="score/s", clock=t.END_TO_END, format=SCORE, tables=(t.SUITES,), unit="x 100",
        definition="The main score / the mean seconds of a generation: quality over latency, by which the best thresholds"
        " are chosen. The paper does not state its criterion.",
    ),
    Column(
        key="ties", heading="ties", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Comparisons in which the judge preferred neither / comparisons.",
    ),
    Column(
        key="losses", heading="losses", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Comparisons in which the judge preferred the other method's continuation / comparisons.",
    ),
    Column(
        key="decided_wins", heading="wins without ties", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Wins / (wins + losses).",
    ),
    Column(
        key="wins_spread", heading="wins, standard deviation", format=TENTHS_OF_PERCENT, tables=(t.SUITES,),
        definition="Standard deviation of the wins over repeats, as SPRINTER prints it.",
    ),
)  # fmt: skip
