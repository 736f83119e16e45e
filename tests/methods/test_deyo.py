import numpy as np
import numpy.typing as npt
import pytest
import torch

import fozo
from fozo.methods.deyo import DeYO, shuffle
from tests.methods.rival_traces import check_norms, engine, load, replay


@pytest.mark.parametrize("name", ["deyo_reset", "deyo_hot_continual"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name)
    upcoming = iter(range(len(trace)))

    def recorded(step: int, images: int, pieces: int) -> npt.NDArray[np.int64]:
        order: npt.NDArray[np.int64] = trace["perm"][trace.rows(next(upcoming))]
        assert order.shape == (images, pieces)
        return order

    method = DeYO(engine(), preset="official", rate=trace.hp["lr"], permutations=recorded)
    for t, _ in replay(trace, method):
        check_norms(method.norms, trace, t)


def test_the_papers_margins_are_the_other_way_round() -> None:
    paper, official = (fozo.create("deyo", engine(), preset=preset) for preset in ("paper", "official"))
    assert isinstance(paper, DeYO) and isinstance(official, DeYO)
    assert (paper.margin, paper.reference) == (official.reference, official.margin)
    assert paper.margin < official.margin


def test_shuffling_moves_pieces_as_the_permutation_says() -> None:
    images = torch.arange(16.0).reshape(1, 1, 4, 4)
    mixed = shuffle(images, torch.tensor([[3, 2, 1, 0]]), pieces=2)
    expected = torch.tensor([[10.0, 11, 8, 9], [14, 15, 12, 13], [2, 3, 0, 1], [6, 7, 4, 5]])
    assert torch.equal(mixed[0, 0], expected)
    assert torch.equal(shuffle(images, torch.tensor([[0, 1, 2, 3]]), pieces=2), images)


def test_an_image_that_cannot_be_cut_evenly_keeps_its_size() -> None:
    images = torch.rand(2, 3, 15, 18, generator=torch.Generator().manual_seed(0))
    mixed = shuffle(images, torch.arange(16).flip(0).expand(2, -1), pieces=4)
    assert mixed.shape == images.shape
    assert mixed.isfinite().all() and not torch.equal(mixed, images)


def test_its_shuffles_are_permutations_and_its_seeds() -> None:
    a, b, other = (fozo.create("deyo", engine(), seed=seed) for seed in (1, 1, 2))
    assert isinstance(a, DeYO) and isinstance(b, DeYO) and isinstance(other, DeYO)
    order = a.permutations(5, 8, 16)
    assert (np.sort(order, axis=1) == np.arange(16)).all()
    assert (order == b.permutations(5, 8, 16)).all()
    assert (order != other.permutations(5, 8, 16)).any()
    assert (order != a.permutations(6, 8, 16)).any()
