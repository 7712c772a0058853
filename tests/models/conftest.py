"""What the tests of odd models and engines share."""

from collections.abc import Iterator

import pytest

from specbench.config.options import Options
from specbench.config.pair import Pair
from specbench.features.verify import verification_run
from specbench.features.verify.enumerated import Enumeration


@pytest.fixture(scope="module")
def enumerated_once() -> Iterator[None]:
    """Enumerate each method once per module. An enumeration runs on lookup tables, whatever the models of the pair are."""
    enumerated, known = verification_run.enumerated, dict[object, Enumeration]()

    def once(method: str, pair: Pair, options: Options) -> Enumeration:
        key = method, options.overrides, options.gamma
        if key not in known:
            known[key] = enumerated(method, pair, options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verification_run, "enumerated", once)
        yield
