"""The default draft length of a method, where neither the user nor the preset gives one.

It follows from the sizes of the models alone. `analysis/length_predictions.py` predicts the fastest length from a run.
"""

from collections.abc import Mapping

DEFAULT = 5  # as in the papers' main experiments
FOR_SIMILAR = 1
SIMILAR = 0.5  # share of the verifying model's parameters, above which the drafting model is similar to it


def default_length(sizes: Mapping[str, int], drafter: str, verifier: str) -> int:
    """Return the draft length for a drafting and a verifying model.

    It is DEFAULT, or FOR_SIMILAR if the drafting model has more than SIMILAR of the verifying model's parameters. A long
    draft of such a model costs more than its accepted tokens save. For example, if a draft token takes 0.6 of the time of a
    verifying forward and is accepted with probability 0.8, a draft of 1 token gives 1.8 tokens in a time of 1.6 (1.1x), and a
    draft of 5 gives 3.7 tokens in a time of 4 (0.9x).

    Args:
        sizes: The numbers of parameters by role. DEFAULT applies if one of the two is missing.
        drafter: The model that drafts.
        verifier: The model that verifies its drafts.
    """
    is_known = drafter in sizes and verifier in sizes  # an unknown role is an error when the method is built
    return FOR_SIMILAR if is_known and sizes[drafter] > SIMILAR * sizes[verifier] else DEFAULT
