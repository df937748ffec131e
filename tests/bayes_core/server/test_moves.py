"""What clients have learned without their inputs' background: by hand, and planted moves of one layer."""

import pytest
import torch
from torch import Tensor

from bayes_core import Gaussian, SpikeSlab, symmetric_kl_matrix
from bayes_core.families import Family
from bayes_core.server.clustering import choose_k_with_evidence, symmetric_kl_to
from bayes_core.server.kinds import Kinds
from bayes_core.server.moves import compare_learned, layers_of, shorten

UNITS, INPUTS = 64, 100
LAYERS = [(UNITS, INPUTS), (UNITS, 1)]


def test_layers_of_shapes() -> None:
    shapes = [(100, 784), (100,), (16, 3, 5, 5), (), torch.Size([4, 2])]
    assert layers_of(shapes) == [(100, 784), (100, 1), (16, 75), (1, 1), (4, 2)]


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)))[0]


@pytest.mark.parametrize("wide", [True, False])
def test_the_strongest_products_get_the_size_of_the_next(wide: bool) -> None:
    units, inputs = orthonormal(20, 8, 0), orthonormal(30, 8, 1)
    sizes = torch.tensor([90.0, 40.0, 10.0, 3.0, 2.0, 1.0, 0.5, 0.1])
    start = torch.randn(20, 30, generator=torch.Generator().manual_seed(2))
    weights, expected = (
        start + units @ torch.diag(kept) @ inputs.T
        for kept in (sizes, sizes.clamp_max(3.0))  # three are shortened to the fourth
    )
    if not wide:
        weights, start, expected = weights.T, start.T, expected.T
    shorten(weights, start, 3)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-4)


def test_what_did_not_move_stays() -> None:
    start = torch.randn(20, 30)
    weights = start.clone()
    shorten(weights, start, 2)
    assert torch.equal(weights, start)


@pytest.mark.parametrize("layers", [[(10, 100), (10, 1)], [(1, 1010)], [(505, 2)]], ids=str)
def test_layers_with_few_units_or_inputs_count_as_they_are(layers: list[tuple[int, int]]) -> None:
    """The strongest product of a layer with two outputs is all that it learns."""
    random = torch.Generator().manual_seed(0)
    uploads = [torch.randn(2, 1010, generator=random) for _ in range(4)]
    start = torch.zeros(2, 1010)
    psi, to_start = compare_learned(uploads, start, Gaussian(), layers)
    assert torch.equal(psi, symmetric_kl_matrix(torch.stack(uploads), Gaussian()))
    assert torch.equal(to_start, symmetric_kl_to(start, uploads, Gaussian()))


# ---------------------------------------------------------------------- planted moves


def planted(groups: list[int], family: Family, seed: int, own: list[float]) -> tuple[list[Tensor], Tensor]:
    """Uploads and their start. Group −1 learns nothing; each client has a part of its own, and all a background.

    The background is one product, the same inputs for all clients. Its units are the same for clients that learn,
    up to what each group's images do to them; and others for those that do not.
    """
    random = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    background, units, others = 0.05 * draw(INPUTS), draw(UNITS), draw(UNITS)
    learned = {group: 0.012 * draw(UNITS, INPUTS) for group in sorted(set(groups)) if group >= 0}
    start = family.init(0.1 * draw(UNITS * INPUTS + UNITS), -2.5, 0.5)
    uploads = []
    for client, group in enumerate(groups):
        towards = units + 0.7 * draw(UNITS) if group >= 0 else 0.6 * units + others
        move = torch.outer(towards, background) + 0.02 * own[client % len(own)] * draw(UNITS, INPUTS)
        upload = start.clone()
        upload[0, : UNITS * INPUTS] += (move + learned.get(group, torch.zeros(()))).flatten()
        uploads.append(upload)
    return uploads, start


def chosen(uploads: list[Tensor], start: Tensor, family: Family) -> tuple[Kinds, Kinds]:
    """By the uploads as they are, and by what was learned."""
    before = [upload.clone() for upload in uploads]
    plain = symmetric_kl_matrix(torch.stack(uploads), family), symmetric_kl_to(start, uploads, family)
    learned = compare_learned(uploads, start, family, LAYERS)
    assert all(torch.equal(*pair) for pair in zip(uploads, before, strict=True)), "not changed"
    return choose_k_with_evidence(*plain).kinds, choose_k_with_evidence(*learned).kinds


@pytest.mark.parametrize("family", [Gaussian(), SpikeSlab()], ids=["gaussian", "spike-slab"])
@pytest.mark.parametrize(
    "groups", [[0] * 12, [0] * 6 + [1] * 6, [0] * 4 + [1] * 4 + [2] * 4], ids=["12", "6+6", "4+4+4"]
)
def test_kinds_before_a_background_that_all_share(groups: list[int], family: Family) -> None:
    seen = []
    for seed in range(5):
        plain, learned = chosen(*planted(groups, family, seed, [0.5, 1.0, 0.7, 1.4]), family)
        seen.append(plain.labels == groups)
        assert learned.labels == groups, f"seed {seed}"
    assert len(set(groups)) == 1 or not any(seen), "the background hides them"


@pytest.mark.parametrize("noisy", [2, 3, 5])
def test_clients_that_learn_nothing_are_no_kind(noisy: int) -> None:
    seen = []
    for seed in range(5):
        plain, learned = chosen(
            *planted([-1] * noisy + [0] * (10 - noisy), Gaussian(), seed, [1.0]), Gaussian()
        )
        seen.append(plain.k > 1)
        assert learned.k == 1 and not learned.sure, f"seed {seed}"
    assert noisy == 2 or any(seen), "by the uploads as they are, they pass for one"
