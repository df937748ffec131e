"""The columns that files have had from the first version on, and how a method's own follow them."""

import subprocess
import sys

import pytest

from fedbayes.protocol.columns import (
    BY_KEY,
    HEADLINES,
    METRICS,
    TITLES,
    Column,
    client_columns,
    columns_of,
    round_columns,
)

MEASURED = (
    "pm_accuracy,gm_accuracy,pm_nll,gm_nll,pm_brier,gm_brier,pm_ece,gm_ece,pm_point_accuracy,gm_point_accuracy,"
    "pm_rmse,gm_rmse,pm_coverage,gm_coverage,pm_nonzero,gm_nonzero,pm_entropy,gm_entropy,pm_mutual_information,"
    "gm_mutual_information,pm_scaled_nll,gm_scaled_nll,pm_scaled_brier,gm_scaled_brier,pm_scaled_ece,gm_scaled_ece,"
    "pm_temperature,gm_temperature,pm_val_nll,gm_val_nll,pm_val_accuracy,gm_val_accuracy,"
    "pm_conformal_coverage,gm_conformal_coverage,pm_conformal_size,gm_conformal_size,pm_conformal_width,gm_conformal_width"
)
OF_SITES = "pm_sites_accuracy,gm_sites_accuracy,pm_sites_nll,gm_sites_nll,pm_sites_rmse,gm_sites_rmse"
SPENT = Column("spent", "privacy spent")
MOOD = Column("mood", "mood of the client", "client")


def test_the_files_keep_their_columns() -> None:
    assert ",".join(round_columns()) == (
        f"round,{MEASURED},{OF_SITES},clusters,cluster_changes,adjusted_rand,epsilon,epsilon_examples,clients_ok,"
        "clients_failed,seconds,bytes_up,bytes_down"
    )
    assert ",".join(client_columns()) == f"round,site,cluster,n_test,{MEASURED},uncertainty,status"


def test_a_methods_own_columns_come_last_and_once() -> None:
    own = (SPENT, MOOD, Column("clusters", "clusters"), SPENT)
    assert round_columns(own) == (*round_columns(), "spent")
    assert client_columns(own) == (*client_columns(), "mood")


def test_columns_are_read_back_and_nonsense_is_left_out() -> None:
    said = [
        SPENT.as_config(),
        MOOD.as_config(),
        {"name": "x"},
        "y",
        {"name": "a b", "title": "", "of": "round"},
    ]
    assert columns_of({"columns": said}) == (SPENT, MOOD)
    assert columns_of({}) == columns_of({"columns": "spent"}) == ()


def test_what_is_no_column_is_named() -> None:
    with pytest.raises(ValueError, match=r"has letters, digits and \"_\", unlike 'a,b'"):
        Column("a,b", "two")
    with pytest.raises(ValueError, match='The column a is of "round" or "client", not \'site\''):
        Column("a", "one", "site")  # type: ignore[arg-type]


def test_metrics_know_where_they_come_from() -> None:
    assert [(BY_KEY[key].kind, BY_KEY[key].source) for key in ("nll", "point_accuracy", "scaled_ece")] == [
        ("", "nll"), ("_point", "accuracy"), ("_scaled", "ece"),
    ]  # fmt: skip
    assert [metric.key for metric in METRICS if metric.kind is None] == [
        "nonzero", "temperature", "conformal_coverage", "conformal_size", "conformal_width",
    ]  # fmt: skip
    assert all((metric.kind is None) == (metric.bounds is not None) for metric in METRICS)
    assert [metric.key for metric in HEADLINES] == ["accuracy", "rmse"]
    assert list(TITLES) == [
        "accuracy", "point_accuracy", "rmse", "coverage", "nll", "brier", "ece", "scaled_nll", "scaled_brier",
        "scaled_ece", "nonzero", "val_nll", "val_accuracy", "conformal_coverage", "conformal_size", "conformal_width",
    ]  # fmt: skip


def test_the_list_loads_without_torch_and_flower() -> None:
    code = (
        "import sys, fedbayes.protocol.columns, fedbayes.protocol.files; "
        "print([name for name in ('torch', 'flwr', 'pydantic') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
