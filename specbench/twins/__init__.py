"""Floor 0: synthetic twins of the tasks: seeded generators of rows in the real schemas, one file each, free of torch."""

from specbench.twins.copying import COPYING
from specbench.twins.gsm8k import GSM8K
from specbench.twins.humaneval import HUMANEVAL
from specbench.twins.mmlu import MMLU
from specbench.twins.news import CNNDM, XSUM
from specbench.twins.twin import Row, Split, Twin
from specbench.twins.wmt import WMT, WMT_BACK

TWINS = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mmlu": MMLU, "cnndm": CNNDM, "xsum": XSUM, "wmt": WMT}

__all__ = ["COPYING", "TWINS", "WMT_BACK", "Row", "Split", "Twin"]
