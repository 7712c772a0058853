"""Synthetic tasks: seeded generators of rows in the schemas of the real tasks, one file each."""

from specbench.data.synthetic.functions import HUMANEVAL
from specbench.data.synthetic.multiple_choice import MMLU
from specbench.data.synthetic.news import CNNDM, XSUM
from specbench.data.synthetic.translations import WMT
from specbench.data.synthetic.word_problems import GSM8K

SYNTHETIC_TASKS = {"gsm8k": GSM8K, "humaneval": HUMANEVAL, "mmlu": MMLU, "cnndm": CNNDM, "xsum": XSUM, "wmt": WMT}
