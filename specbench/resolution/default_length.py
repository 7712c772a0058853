"""The default draft length of a method, where neither the user, the preset nor the pair gives one.

Not what is predicted to be the fastest: `analysis/length_predictions.py` predicts that from a run.
"""

from collections.abc import Mapping

LENGTH = 5  # as in the papers' main experiments
LENGTH_OF_SIMILAR = 1
SIMILAR = 0.5  # share of the verifying model's parameters from which on the drafting model is similar to it


def default_length(sizes: Mapping[str, int], drafter: str, verifier: str) -> int:
    """Return the draft length for a drafting and a verifying model.

    It is LENGTH, or LENGTH_OF_SIMILAR if the drafting model has more than SIMILAR of the verifying model's parameters: then
    a draft token costs nearly as much as a token of the verifying model, and each further one is less likely to be accepted.

    Args:
        sizes: Parameters by role. LENGTH applies to models whose size is unknown.
        drafter: The model that drafts.
        verifier: The model that verifies its drafts.
    """
    is_known = drafter in sizes and verifier in sizes  # otherwise building the method raises the error
    return LENGTH_OF_SIMILAR if is_known and sizes[drafter] > SIMILAR * sizes[verifier] else LENGTH
