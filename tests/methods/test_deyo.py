import numpy as np
import torch

from fozo.methods.deyo import DeYO, Shuffles, shuffle


def test_the_papers_margins_are_the_other_way_round() -> None:
    paper = DeYO.PRESETS["paper"]
    official = DeYO.PRESETS["official"]
    assert (paper.e_margin, paper.e_reference) == (official.e_reference, official.e_margin)
    assert paper.e_margin < official.e_margin


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
    order = Shuffles(1)(5, 8, 16)
    assert (np.sort(order, axis=1) == np.arange(16)).all()
    assert (order == Shuffles(1)(5, 8, 16)).all()
    assert (order != Shuffles(2)(5, 8, 16)).any()
    assert (order != Shuffles(1)(6, 8, 16)).any()
