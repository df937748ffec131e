"""What the paper says of its tables and figures, as orderings of figures that can be looked up."""

from collections.abc import Iterable
from itertools import pairwise

from fedbayes.reproduce import paper
from fedbayes.reproduce.cells import ENTROPY, SIZES
from fedbayes.reproduce.checks import Check, Claim, Figure, Lead

LAMBDAS = ("0.3", "0.5", "0.7")
ROTATED = ("mnist-rotated", "fmnist-rotated")


def _places(what: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys((paper.dataset_of(row), row["size"]) for row in paper.rows(what)))


def _figure(what: str, data: str, size: str, method: str, model: str) -> Figure:
    return Figure(what, f"{data}/{size}/{method}", model)


def _rivals(what: str, data: str, size: str, method: str, model: str) -> tuple[Figure, ...]:
    """The other methods of the table that have such a model."""
    names = (
        name
        for name, given in paper.figures(what).items()
        if model in given
        and name.startswith(f"{data}/{size}/")
        and not name.endswith((f"/{method}", paper.EARLY))
    )
    return tuple(Figure(what, name, model) for name in names)


def _best(what: str, method: str, model: str, data: Iterable[str] = ()) -> tuple[Check, ...]:
    """The method's model is the best of its kind, place by place."""
    return tuple(
        Check(
            f"{name} {size}",
            (_figure(what, name, size, method, model),),
            _rivals(what, name, size, method, model),
        )
        for name, size in _places(what)
        if not data or name in data
    )


def _above(
    what: str, higher: tuple[str, str], lower: tuple[str, str], *data: str, slack: float = 0
) -> tuple[Check, ...]:
    """One method's model is above another's, each given as method and model, place by place."""
    return tuple(
        Check(
            f"{name} {size}",
            (_figure(what, name, size, *higher),),
            (_figure(what, name, size, *lower),),
            slack=slack,
        )
        for name, size in _places(what)
        if not data or name in data
    )


def _growing(what: str, method: str, model: str) -> tuple[Check, ...]:
    """More data, better models."""
    return tuple(
        Check(
            f"{data} {less} to {more}",
            (_figure(what, data, more, method, model),),
            (_figure(what, data, less, method, model),),
        )
        for data in dict.fromkeys(data for data, _ in _places(what))
        for less, more in pairwise(SIZES)
    )


def _sparse(data: str, size: str, share: str, figure: str) -> Figure:
    return Figure("table2", f"{data}/{size}/sfedbayes/lambda-init={share}", figure)


def _table1() -> list[Claim]:
    data = list(dict.fromkeys(name for name, _ in _places("table1")))
    leads = tuple(
        Check(
            name,
            (_lead(name, "small"),),
            (_lead(name, "large"),),
        )
        for name in data
    )
    worst = tuple(
        Check(check.place, check.lower, check.higher, every=True)
        for check in _best("table1", "bnfed", "gm", ("mnist", "fmnist", "cifar10"))
    )
    large = tuple(
        check
        for check in _above("table1", ("fedavg", "gm"), ("pfedbayes", "gm"), "cifar10", "svhn")
        if check.place.endswith("large")
    )
    return [
        Claim("table1", "pFedBayes has the best personal model", _best("table1", "pfedbayes", "pm")),
        Claim("table1", "its lead is larger on small data than on large data", leads),
        Claim("table1", "its global model is the best in most settings", _best("table1", "pfedbayes", "gm"), most=True),
        Claim("table1", "on FMNIST, FedAvg's global model is better",
              _above("table1", ("fedavg", "gm"), ("pfedbayes", "gm"), "fmnist")),
        Claim("table1", "on large CIFAR-10 and SVHN its global model is not ahead of FedAvg's", large),
        Claim("table1", "BNFed's global model is the worst", worst),
        Claim("table1", "pFedBayes' personal model is better than its global one",
              _above("table1", ("pfedbayes", "pm"), ("pfedbayes", "gm"))),
        Claim("table1", "pFedBayes' personal model is better with more data", _growing("table1", "pfedbayes", "pm")),
    ]  # fmt: skip


def _lead(data: str, size: str) -> Lead:
    return Lead(
        _figure("table1", data, size, "pfedbayes", "pm"), _rivals("table1", data, size, "pfedbayes", "pm")
    )


def _table2() -> list[Claim]:
    places = _places("table2")
    better, aligned, half, worse = [], [], [], []
    for data, size in places:
        place = f"{data} {size}"
        dense = [Figure("table1", f"{data}/{size}/pfedbayes", model) for model in ("pm", "gm")]
        better.append(Check(place, tuple(_sparse(data, size, share, "pm") for share in LAMBDAS), (dense[0],)))
        half.append(Check(place, (50.0,), (_sparse(data, size, "0.5", "pm_nnr"),)))
        aligned += [
            Check(f"{place}, {more} and {less}", (_sparse(data, size, more, "pm_nnr"),),
                  (_sparse(data, size, less, "pm_nnr"),))
            for less, more in pairwise(LAMBDAS)
        ]  # fmt: skip
        worse.append(Check(place, (dense[1],), (_sparse(data, size, "0.5", "gm"),)))
    half_way = tuple(
        Check(f"{data} medium", (_sparse(data, "medium", "0.5", "pm"),),
              (Figure("table1", f"{data}/medium/pfedbayes", "pm"),))
        for data in ("mnist", "cifar10")
    )  # fmt: skip
    return [
        Claim(
            "table2",
            "with some λ of 0.3, 0.5 and 0.7 the personal model is better than pFedBayes'",
            tuple(better),
        ),
        Claim("table2", "λ = 0.5 is better than pFedBayes on MNIST medium and CIFAR-10 medium", half_way),
        Claim("table2", "the share of weights that stay follows λ at the start", tuple(aligned)),
        Claim("table2", "with λ = 0.5 less than half of the weights stay", tuple(half)),
        Claim("table2", "with λ = 0.5 the global model is a little worse than pFedBayes'", tuple(worse)),
    ]


def _table3() -> list[Claim]:
    return [
        *(
            Claim("table3", f"cFedBayes has the best {word} model on MNIST–MNIST⊥ and FMNIST–FMNIST⊥",
                  _best("table3", "cfedbayes", model, ROTATED))
            for model, word in (("pm", "personal"), ("gm", "global"))
        ),
        Claim("table3", "cFedBayes has the best global model on CIFAR-10–CIFAR-10⊥",
              _best("table3", "cfedbayes", "gm", ("cifar10-rotated",))),
        *(
            Claim("table3", f"on MNIST–FMNIST cFedBayes is better than or, within half a point, as good as {other}",
                  _above("table3", ("cfedbayes", "pm"), (other.lower(), "pm"), "mnist-fmnist", slack=0.5))
            for other in ("sFedBayes", "pFedBayes")
        ),
        Claim("table3", "cFedBayes is better with more data", _growing("table3", "cfedbayes", "pm")),
    ]  # fmt: skip


def _settings() -> list[Claim]:
    def dense(
        rho: str, zeta: str = "10", personal: str = "0.001", common: str = "0.001", model: str = "pm"
    ) -> Figure:
        words = f"rho-init={rho}/zeta={zeta}/lr-personal={personal}/lr-global={common}"
        return Figure("settings", f"mnist/medium/pfedbayes/{words}", model)

    def sparse(share: str, model: str) -> Figure:
        return Figure("settings", f"mnist/medium/sfedbayes/rho-init=-2.5/zeta=10/lambda-init={share}", model)

    rates = tuple(
        Check(f"ρ = {rho}", (dense(rho),),
              tuple(dense(rho, "10", *pair) for pair in (("0.001", "0.005"), ("0.005", "0.001"), ("0.005", "0.005"))))
        for rho in ("-1", "-2", "-3")
    )  # fmt: skip
    zetas = ("0.5", "1", "5", "10")
    rising = tuple(
        Check(f"ζ {less} to {more}", (dense("-2.5", more, model="gm"),), (dense("-2.5", less, model="gm"),))
        for less, more in pairwise(zetas)
    )
    falling = tuple(
        Check(f"ζ {less} to {more}", (dense("-2.5", less),), (dense("-2.5", more),))
        for less, more in pairwise(("1", "5", "10", "20"))
    )
    rhos = tuple(dense(rho, model="gm") for rho in ("-1", "-1.5", "-2", "-3"))
    shares = ("0.1", "0.3", "0.7", "0.9")
    return [
        Claim("settings", "rates of 0.001 and 0.001 are the best (PM)", rates),
        Claim("settings", "a larger ζ is better for the global model, up to 10", rising),
        Claim("settings", "a larger ζ is worse for the personal model, from 1 on", falling),
        Claim("settings", "ρ = −2.5 is the best for the global model",
              (Check("", (dense("-2.5", model="gm"),), rhos),)),
        Claim("settings", "λ = 0.5 is the best for sFedBayes' personal model",
              (Check("", (sparse("0.5", "pm"),), tuple(sparse(share, "pm") for share in shares)),)),
        Claim("settings", "where it is too sparse (λ = 0.1) the global model is worse than with 0.5",
              (Check("", (sparse("0.5", "gm"),), (sparse("0.1", "gm"),)),)),
    ]  # fmt: skip


def _figures() -> list[Claim]:
    ahead, stable = [], []
    for size in SIZES:
        mine = Figure("figures", f"mnist/{size}/pfedbayes", "pm")
        rivals = _rivals("table1", "mnist", size, "pfedbayes", "pm")
        at_50 = Figure("figures", mine.name, "pm", 50)
        others = tuple(Figure("figures", one.name, "pm", 50) for one in rivals)
        ahead.append(Check(f"mnist {size}", (at_50,), others))
        stable.append(Check(f"mnist {size}", (at_50,), (mine,), slack=1.0))
    name = f"mnist/medium/pfedbayes/{ENTROPY}"
    sure = tuple(
        Check(f"round {before} to {after}", (Figure("figures", name, "entropy", before),),
              (Figure("figures", name, "entropy", after),))
        for before, after in pairwise((0, 1, 10))
    )  # fmt: skip
    return [
        Claim("figures", "figure 2: as training goes on, clients become surer of their predictions", sure),
        Claim(
            "figures",
            "figure 3: pFedBayes learns fastest; in round 50 its personal model is ahead",
            tuple(ahead),
        ),
        Claim("figures", "figure 3: from round 50 on pFedBayes is stable, within a point", tuple(stable)),
    ]


def claims(what: str) -> list[Claim]:
    """What the paper says of this table."""
    made = {
        "table1": _table1,
        "table2": _table2,
        "table3": _table3,
        "settings": _settings,
        "figures": _figures,
    }
    return made[what]()
