"""What sites agree on: pooled moments against numpy, classes and columns by hand, two named where they differ."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedbayes.protocol.agreement import Agreement, Claim, Disagreement, MeanVariance, in_order, standardised
from fedbayes.protocol.tables import ColumnClaim, TableClaim


def moments(x: np.ndarray) -> MeanVariance:
    return MeanVariance(len(x), tuple(x.mean(0)), tuple(x.var(0)))


def test_pooled_moments_are_those_of_all_examples_together() -> None:
    random = np.random.default_rng(0)
    parts = [
        random.normal(center, width, (n, 3)) for center, width, n in ((0, 1, 7), (50, 2, 100), (-3, 9, 1))
    ]
    pooled = MeanVariance.pooled(moments(part) for part in parts)
    everything = np.concatenate(parts)
    assert pooled.n == 108
    assert pooled.mean == pytest.approx(everything.mean(0))
    assert pooled.variance == pytest.approx(everything.var(0))
    assert pooled.deviation == pytest.approx(everything.std(0))


def test_a_constant_feature_is_not_divided() -> None:
    assert moments(np.full((4, 2), 7.0)).deviation == (1.0, 1.0)


def test_standardised_vectors_and_images() -> None:
    random = np.random.default_rng(0)
    vectors = random.normal(1e6, 3, (50, 4)).astype(np.float32)
    done = standardised(torch.from_numpy(vectors), *_mean_and_deviation(vectors, 0))
    assert np.allclose(done.mean(0), 0, atol=1e-5) and np.allclose(done.std(0, correction=0), 1, atol=1e-5)
    images = random.normal(5, 2, (20, 3, 4, 4)).astype(np.float32)
    done = standardised(torch.from_numpy(images), *_mean_and_deviation(images, (0, 2, 3)))
    assert done.shape == images.shape and done.dtype == torch.float32
    assert np.allclose(done.mean((0, 2, 3)), 0, atol=1e-5)


def _mean_and_deviation(x: np.ndarray, axis: int | tuple[int, ...]) -> tuple[list[float], list[float]]:
    return x.astype(float).mean(axis).tolist(), x.astype(float).std(axis).tolist()


FOUND = Claim((2,), ("cat", "dog"), declared=False)


def test_classes_are_the_sorted_union_of_those_found() -> None:
    claims = {"a": FOUND, "b": replace(FOUND, classes=("ant", "dog")), "c": replace(FOUND, classes=("cow",))}
    assert Agreement.of(claims).classes == ("ant", "cat", "cow", "dog")
    numbers = {"a": replace(FOUND, classes=("9", "10")), "b": replace(FOUND, classes=("2",))}
    assert Agreement.of(numbers).classes == ("2", "9", "10")


def test_a_declared_list_is_kept_in_its_order_and_holds_for_all() -> None:
    claims = {"a": FOUND, "b": Claim((2,), ("dog", "emu", "cat"), declared=True)}
    assert Agreement.of(claims).classes == ("dog", "emu", "cat")
    for other in (replace(FOUND, classes=("cow",)), Claim((2,), ("cat", "dog", "emu"), declared=True)):
        with pytest.raises(Disagreement) as caught:
            Agreement.of(claims | {"c": other})
        assert str(caught.value).startswith(
            'Sites "b" and "c" differ in their classes: "dog", "emu", "cat" and "c'
        )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"classes": ()},
            'Sites "a" and "b" differ in their task: "a" has classes, "b" has numbers as targets; say which with '
            "task=classification or task=regression.",
        ),
        ({"shape": (3,)}, 'Sites "a" and "b" have examples of different shapes: 2 features and 3 features.'),
        ({"shape": (1, 8, 9)}, 'Sites "a" and "b" have examples of different shapes: 2 features and 1×8×9.'),
        (
            {"features": ("age", "bmi")},
            'Sites "a" and "b" have different columns: "a" alone has none, "b" "age", "bmi".',
        ),
    ],
)
def test_sites_that_differ_are_both_named(change: dict, sentence: str) -> None:
    with pytest.raises(Disagreement) as caught:
        Agreement.of({"a": FOUND, "b": replace(FOUND, **change)})
    assert str(caught.value) == sentence


def test_columns_in_another_order_are_the_same_columns() -> None:
    claims = {name: replace(FOUND, features=order) for name, order in (("a", ("x", "y")), ("b", ("y", "x")))}
    assert Agreement.of(claims).features == ("x", "y")


def test_scale_and_target_are_pooled_when_all_sites_send_moments() -> None:
    random = np.random.default_rng(0)
    parts = {name: random.normal(loc, 2, (30, 3)) for name, loc in (("a", 0), ("b", 10))}
    claims = {
        name: Claim((2,), (), True, inputs=moments(x[:, :2]), target=moments(x[:, 2:]))
        for name, x in parts.items()
    }
    agreed, both = Agreement.of(claims), np.concatenate(list(parts.values()))
    assert agreed.mean == pytest.approx(both[:, :2].mean(0)) and agreed.deviation == pytest.approx(
        both[:, :2].std(0)
    )
    assert (agreed.target_mean, agreed.target_deviation) == pytest.approx(
        (both[:, 2].mean(), both[:, 2].std())
    )
    assert Agreement.read(agreed.write()) == agreed
    without = Agreement.of({name: replace(claim, inputs=None) for name, claim in claims.items()})
    assert without.mean == () and without.target_mean is not None


def test_a_claim_survives_the_journey_and_nonsense_does_not() -> None:
    claim = Claim((2,), ("a",), False, ("x", "y"), MeanVariance(3, (0.5, 1.0), (1.0, 2.0)))
    assert Claim.read(claim.write()) == claim
    whole = json.loads(claim.write())
    for broken in (
        {"inputs": {"n": 0, "mean": [0.0, 0.0], "variance": [1.0, 1.0]}},
        {"inputs": {"n": 3, "mean": [0.0], "variance": [1.0, 1.0]}},
        {"inputs": {"n": 3, "mean": [0.0, float("nan")], "variance": [1.0, 1.0]}},
        {"inputs": {"n": 3, "mean": [0.0, 0.0], "variance": [1.0, -1.0]}},
        {"inputs": {"n": 3, "mean": "00", "variance": [1.0, 1.0]}},
        {"shape": "x"},
    ):
        with pytest.raises((ValueError, TypeError)):
            Claim.read(json.dumps(whole | broken))
    with pytest.raises(Disagreement, match="do not describe their inputs alike"):
        Agreement.of({"a": claim, "b": replace(claim, inputs=MeanVariance(3, (0.0,) * 3, (1.0,) * 3))})


def test_in_order() -> None:
    assert in_order(["10", "9", "-1", "9"]) == ("-1", "9", "10")
    assert in_order(["10", "9", "a"]) == ("10", "9", "a")


def test_a_claim_about_other_columns_is_no_claim() -> None:
    column = ColumnClaim("age", "number", 3, 0)
    claim = Claim((1,), ("a",), False, features=("age",), table=TableClaim((column,)))
    assert Claim.read(claim.write()) == claim
    with pytest.raises(ValueError, match="a table of other columns"):
        Claim.read(replace(claim, features=("weight",)).write())
    for wrong in ({"kind": "odd"}, {"n": -1}, {"mean": float("nan")}, {"variance": -1.0}):
        with pytest.raises(ValueError, match="an impossible column"):
            Claim.read(replace(claim, table=TableClaim((replace(column, **wrong),))).write())


def test_an_agreement_with_a_preparation_survives_its_file() -> None:
    table = TableClaim(
        (
            ColumnClaim("age", "number", 3, 1, 40.0, 4.0),
            ColumnClaim("sex", "category", 4, 0, words=(("f", 2),)),
        ),
        na=("none",),
    )
    claim = Claim((2,), ("a", "b"), False, features=("age", "sex"), table=table)
    found = Agreement.of({"one": claim})
    assert found.features == ("age", "age missing", "sex=f", "sex=other")
    assert (found.mean, found.deviation) == ((40.0, 0.0, 0.0, 0.0), (2.0, 1.0, 1.0, 1.0))
    assert Agreement.read(found.write()) == found
