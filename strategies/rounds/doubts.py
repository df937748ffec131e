"""What looks odd in the sites' claims, in words: things that a run can be trained with, but hardly should.

A label with a blank too many is a class of its own; a patient's number is a feature like any other. Nothing is changed
for it: the user is told, and may know better.
"""

import unicodedata
from collections.abc import Iterator, Mapping

from fedbayes.protocol.agreement import Claim, listed


def doubts(claims: Mapping[str, Claim]) -> Iterator[str]:
    """One sentence for each kind of oddity."""
    yield from _near_duplicates("Classes", {name for claim in claims.values() for name in claim.classes})
    yield from _near_duplicates("Columns", {name for claim in claims.values() for name in claim.features})
    yield from _lonely_classes(claims)
    yield from _ids(claims)


def _near_duplicates(what: str, names: set[str]) -> Iterator[str]:
    """Names that differ only in blanks, case or signs."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        alike.setdefault(_bare(name), []).append(name)
    pairs = [" and ".join(f'"{name}"' for name in group) for group in alike.values() if len(group) > 1]
    if pairs:
        yield (
            f"{what} {'; '.join(pairs[:6])} are nearly the same name; if they are the same thing, write them "
            "alike at all sites."
        )


def _bare(name: str) -> str:
    """Letters and digits alone; numbers, whose signs matter, stay as they are."""
    try:
        float(name)
    except ValueError:
        folded = unicodedata.normalize("NFKC", name).casefold()
        return "".join(letter for letter in folded if letter.isalnum()) or name
    return name


def _lonely_classes(claims: Mapping[str, Claim]) -> Iterator[str]:
    """Classes that one of several sites has; where they were declared, a site says nothing of what it has."""
    if len(claims) < 2 or any(claim.declared for claim in claims.values()):
        return
    holders: dict[str, list[str]] = {}
    for site, claim in claims.items():
        for name in claim.classes:
            holders.setdefault(name, []).append(site)
    alone = [f'"{name}" ({sites[0]})' for name, sites in holders.items() if len(sites) == 1]
    if alone:
        more = ", …" if len(alone) > 12 else ""
        yield f"Only one site has the class{'es' * (len(alone) > 1)} {', '.join(alone[:12])}{more}."


def _ids(claims: Mapping[str, Claim]) -> Iterator[str]:
    """Columns with another whole number, or another word, in every row of every site."""
    sets = [set(claim.ids) for claim in claims.values()]
    found = sorted(set.intersection(*sets)) if sets else []
    if found:
        one = len(found) == 1
        yield (
            f"The column{'' if one else 's'} {listed(found)} {'is' if one else 'are'} different in every row, as ids "
            f"are, and would be learned from; ignore={','.join(found)} leaves {'it' if one else 'them'} out."
        )
