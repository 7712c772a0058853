"""Floor 5: the tasks, one class and one file each. Importing the package registers them."""

from specbench.tasks import gsm8k, prompts

__all__ = ["gsm8k", "prompts"]
