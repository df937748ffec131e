"""Who is left out when sites differ: no single one has a veto over a run for which enough others agree."""

from collections import Counter
from collections.abc import Collection, Hashable, Mapping

from fedbayes.protocol.agreement import Agreement, Claim

COMPARED = 300  # different claims at most; each is compared with each


def majority_of(kinds: Mapping[str, Hashable], at_least: int) -> set[str]:
    """The names of the one kind that more than half have, and at least so many; nobody where there is none."""
    if not kinds:
        return set()
    kind, number = Counter(kinds.values()).most_common(1)[0]
    return {name for name, one in kinds.items() if one == kind} if _enough(number, kinds, at_least) else set()


def majority_of_claims(claims: Mapping[str, Claim], at_least: int) -> set[str]:
    """Sites whose claims fit together, more than half of them and at least so many; nobody where there are none.

    Those who fit to most others come first, and whoever fits to all before is kept.
    """
    kinds = {name: _kind(one) for name, one in claims.items()}
    sizes = Counter(kinds.values())
    if len(sizes) > COMPARED:
        return set()
    one_of = {kind: claims[name] for name, kind in kinds.items()}
    fits = {kind: {other for other in sizes if _fit(one_of[kind], one_of[other])} for kind in sizes}
    order = sorted(sizes, key=lambda kind: (-sum(sizes[other] for other in fits[kind]), repr(kind)))
    kept: list[Hashable] = []
    for kind in order:
        if all(kind in fits[other] for other in kept):
            kept.append(kind)
    names = {name for name, kind in kinds.items() if kind in kept}
    return names if _enough(len(names), claims, at_least) else set()


def _kind(claim: Claim) -> Hashable:
    """All of a claim that others can differ from; of its means, how many there are; of a table, its columns."""
    means = [None if found is None else len(found.mean) for found in (claim.inputs, claim.target)]
    table = claim.table and tuple(
        (column.name, column.kind, column.binary, bool(column.missing)) for column in claim.table.columns
    )
    said = (
        claim.shape,
        claim.classes,
        claim.declared,
        claim.features,
        claim.brightest,
        claim.many,
        claim.form,
    )
    return (*said, table, *means)


def _fit(one: Claim, other: Claim) -> bool:
    try:
        Agreement.of({"one": one, "other": other})
    except Exception:  # a Disagreement, or whatever else keeps the two from one
        return False
    return True


def _enough(number: int, everybody: Collection[object], at_least: int) -> bool:
    return number > len(everybody) / 2 and number >= at_least
