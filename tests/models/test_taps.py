"""AuxLayers: the inputs of layers that a session keeps, on every engine, against transformers' hidden states."""

import pytest
import torch

from specbench.decoding.sampling import Sampler, Tree
from specbench.models.cached_session import CachedSession
from specbench.models.lean.graphs import Graphs
from specbench.models.lean.lean_model_runner import GraphModelRunner
from specbench.models.lean.network import Network, network_of
from tests.fixtures.worlds import ENGINES, open_session, random_model

IDS = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]
AUX_LAYERS = (1, 0)  # not in ascending order
DECODERS = sorted(name for name, network in Network.families.items() if not network.encoder_decoder)


def tapped_session(family: str, engine: str) -> CachedSession:
    """Return a session that keeps the aux_layers. Its graphs, if it has any, were captured for these aux_layers."""
    if engine != "graph":
        session = open_session(random_model(family, 1), engine)
    else:
        graphs = Graphs(network_of(random_model(family, 1)), torch.device("cpu"))
        CachedSession(GraphModelRunner(graphs, 40)).keep_states(AUX_LAYERS)
        graphs.prepare(64, range(1, 7))
        session = CachedSession(GraphModelRunner(graphs, 40))
    session.keep_states(AUX_LAYERS)
    return session


def inputs_of_layers(family: str, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        out = random_model(family, 1)(input_ids=torch.tensor([ids]), output_hidden_states=True)
    return torch.cat([out.hidden_states[layer][0] for layer in AUX_LAYERS], -1)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", DECODERS)
def test_aux_layers_are_the_inputs_of_layers(family, engine):
    session = tapped_session(family, engine)
    session.score(IDS[:6], 5)
    session.score([*IDS[:5], 1, 2], 6)  # a rejection
    torch.testing.assert_close(
        session.hidden(IDS, 2, AUX_LAYERS), inputs_of_layers(family, IDS)[2:], atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("engine", ["eager", "lean", "graph"])
def test_aux_layers_follow_the_accepted_path_of_a_tree(engine):
    session = tapped_session("llama", engine)
    session.keep_states()
    session.score(IDS[:4], 3)
    session.score(IDS[:5], 4, Tree([1, IDS[5], 2, IDS[6]], (-1, -1, 0, 1)))
    found = session.hidden(IDS[:7], 0, AUX_LAYERS)
    torch.testing.assert_close(found, inputs_of_layers("llama", IDS[:7]), atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(session.hidden(IDS[:7], 0, (0,)), found.chunk(2, -1)[1])
    assert session.hidden(IDS[:7], 0).shape == found.chunk(2, -1)[0].shape


def test_a_roll_without_reads_keeps_aux_layers():
    session = tapped_session("llama", "graph")
    session.score(IDS, len(IDS) - 1)
    draft = session.roll_at_once(IDS, 3, Sampler(0.0), frozenset())
    ids = [*IDS, *draft.tokens]
    torch.testing.assert_close(session.hidden(ids, 0, AUX_LAYERS), inputs_of_layers("llama", ids), atol=2e-5, rtol=1e-4)


def test_a_layer_that_a_model_lacks_is_an_error():
    with pytest.raises(ValueError, match="has 2 layers, so no layer 2"):
        open_session(random_model("llama", 1), "lean").keep_states((2,))
