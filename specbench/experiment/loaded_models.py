"""Loaded models: the models of one plan at a time. Other plans use them if they need no others."""

import gc

import torch

from specbench.models import loader
from specbench.models.loaded_pair import LoadedPair
from specbench.resolution.run_plan import PairPlan


class LoadedModels:
    """The owner of the loaded models. The models of a plan are loaded on first use, in place of the ones before."""

    def __init__(self) -> None:
        self._plan: PairPlan | None = None
        self._pair: LoadedPair | None = None

    def has(self, plan: PairPlan) -> bool:
        """Return whether the models and heads of a plan are loaded."""
        return self._plan is not None and contains(self._plan, plan)

    def of(self, plan: PairPlan) -> LoadedPair:
        """Return the models of a plan, loaded. Raises MissingAsset if weights were deleted after resolution."""
        if self._pair is None or not self.has(plan):
            self.release()
            self._pair = loader.load(plan.models, plan.pair.base, plan.device, plan.pair.heads)
            self._plan = plan
        return self._pair

    def release(self) -> None:
        """Drop the models, and free their memory."""
        was_on_gpu = self._plan is not None and self._plan.device.type == "cuda"
        self._plan = self._pair = None
        gc.collect()  # a model's modules, hooks and graphs refer to one another
        if was_on_gpu:
            torch.cuda.empty_cache()


def contains(plan: PairPlan, other: PairPlan) -> bool:
    """Return whether a plan has the models and heads of another one, of the same pair on the same device."""
    same = (plan.pair.name, plan.device) == (other.pair.name, other.device)
    models = {role: model.source for role, model in plan.models.items()}
    heads = {name: head.source for name, head in plan.pair.heads.items()}
    return (
        same
        and all(models.get(role) == model.source for role, model in other.models.items())
        and all(heads.get(name) == head.source for name, head in other.pair.heads.items())
    )
