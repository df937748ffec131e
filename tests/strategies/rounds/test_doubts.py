"""What looks odd in the claims of sites is told, and nothing else."""

from fedbayes.protocol.agreement import Claim
from strategies.rounds.doubts import doubts


def claim(
    *classes: str, features: tuple[str, ...] = (), ids: tuple[str, ...] = (), declared: bool = False
) -> Claim:
    return Claim((2,), classes, declared, features=features, ids=ids)


def test_a_blank_or_a_capital_makes_no_new_thing() -> None:
    told = list(doubts({"a": claim("Benign", "Benign ", "other"), "b": claim("benign", "other")}))
    assert told[0].startswith('Classes "Benign" and "Benign " and "benign" are nearly the same name')
    assert list(doubts({"a": claim("-1", "1", "+", "-"), "b": claim("-1", "1", "+", "-")})) == []


def test_a_class_of_one_site_is_named_with_it() -> None:
    told = list(doubts({"a": claim("x", "y"), "b": claim("x")}))
    assert told == ['Only one site has the class "y" (a).']
    assert list(doubts({"a": claim("x", "y", declared=True), "b": claim("x", "y", declared=True)})) == []
    assert list(doubts({"a": claim("x", "y")})) == [], "one site alone holds everything"


def test_ids_are_columns_that_differ_in_every_row_of_every_site() -> None:
    both = {"a": claim(ids=("patient", "age")), "b": claim(ids=("patient",))}
    assert [sentence.split(" is ")[0] for sentence in doubts(both)] == ['The column "patient"']
