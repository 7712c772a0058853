"""Synthetic tasks: seeded generators of rows in the schemas of the real tasks, one file each."""

from specbench.data.synthetic.gsm8k import GSM8K
from specbench.data.synthetic.humaneval import HUMANEVAL
from specbench.data.synthetic.mmlu import MMLU
from specbench.data.synthetic.news import CNNDM, XSUM
from specbench.data.synthetic.wmt import WMT

SYNTHETIC_TASKS = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mmlu": MMLU, "cnndm": CNNDM, "xsum": XSUM, "wmt": WMT}
