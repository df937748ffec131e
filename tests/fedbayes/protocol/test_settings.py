"""Settings: every default is valid, and every mistake is told in one sentence that names the key."""

import pytest

from client_app.methods.fedprox import ProximalOptions
from client_app.methods.pfedbayes import UpdateOptions
from fedbayes.launch.app_bundle import methods
from fedbayes.launch.methods import checked, halves, keys_of, read
from fedbayes.protocol.settings import Options, Settings, SettingsError, app_file, defaults, flattened
from strategies.pfedbayes import PriorOptions


def sentence(**changes: object) -> str:
    values = {key.replace("_", "-"): value for key, value in changes.items()}
    with pytest.raises(SettingsError) as caught:
        Settings.parse(defaults() | values)
    return str(caught.value)


def common() -> set[str]:
    return {str(field.alias) for field in Settings.model_fields.values()}


def test_the_defaults_are_valid_and_complete() -> None:
    settings = Settings.parse(defaults())
    assert settings.method == "pfedbayes"
    assert settings.as_config() == defaults()
    assert app_file().name == "pyproject.toml"


def test_the_models_and_the_defaults_have_the_same_keys() -> None:
    own = [keys_of(method) for method in methods()]
    assert common() | set().union(*own) == set(defaults())
    assert common() & set().union(*own) <= {"rounds"}, "what all methods have, no method declares"


def test_what_ships_has_its_defaults_in_one_place() -> None:
    for method in methods():
        for half in halves(method):
            required = [field.is_required() for field in half.reads.model_fields.values()]
            assert all(required), f"{half.reads.__name__} has a default beside pyproject.toml"


def test_keys_that_several_halves_read_are_the_same_in_all() -> None:
    """Type, bounds and words."""
    first: dict[str, str] = {}
    for method in methods():
        for half in halves(method):
            for field in half.reads.model_fields.values():
                said = repr((field.annotation, field.description, field.metadata))
                assert first.setdefault(str(field.alias), said) == said, field.alias


def test_text_from_a_command_line_becomes_numbers_and_switches() -> None:
    settings = read(Settings.parse(defaults() | {"rounds": "7", "zeta": "0.5", "train-all": "true"}))
    assert (settings.rounds, settings.as_config()["zeta"], settings.train_all) == (7, 0.5, True)
    for text, value in (("auto", "auto"), ("true", True), ("false", False)):
        assert UpdateOptions.parse(defaults() | {"compile": text}).compile is value


def test_options_by_their_python_names() -> None:
    assert PriorOptions.of(beta=1.5).as_config() == {
        "beta": 1.5, "weighting": "uniform", "aggregation": "mean", "hostile-share": 0.2,
        "bayesian": "all", "plain-weights": "shared", "rho-init": -2.5, "prior-decay": 0.0,
    }  # fmt: skip
    assert ProximalOptions.of().proximal == defaults()["proximal"]
    with pytest.raises(SettingsError, match="no option 'zeta'; there are proximal"):
        ProximalOptions.of(zeta=1)


@pytest.mark.parametrize(
    ("method", "key", "value", "users"),
    [
        ("fedavg", "zeta", "3", "cfedbayes, pfedbayes, sfedbayes"),
        ("pfedbayes", "lambda-init", "0.3", "cfedbayes, sfedbayes"),
        ("pfedbayes", "clusters", "2", "cfedbayes, fesem, ifca"),
        ("local", "aggregation", "moments", "cfedbayes, pfedbayes, sfedbayes"),
        ("fedavg", "proximal", "0.5", "fedprox"),
    ],
)
def test_a_setting_that_the_method_does_not_use_is_refused(
    method: str, key: str, value: str, users: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        checked(Settings.parse(defaults() | {"method": method, key: value}))
    assert str(caught.value) == f'method={method} does not use the setting "{key}"; {users} would.'
    same = defaults() | {"method": method, key: str(defaults()[key])}
    checked(Settings.parse(same))  # its default changes nothing
    read(Settings.parse(defaults() | {"method": method, key: value}))  # a run of an earlier version goes on


def test_a_methods_own_table_has_dots() -> None:
    assert flattened({"rounds": 3, "pfedme": {"penalty": 15.0}}) == {"rounds": 3, "pfedme.penalty": 15.0}


def test_options_ignore_what_they_do_not_read() -> None:
    assert Options.parse(defaults()).as_config() == {}


@pytest.mark.parametrize(
    ("key", "value", "takes"),
    [
        ("method", "PFed Bayes", "the name of a method"),
        ("rounds", "0", "a whole number of at least 1"),
        ("rounds", "2.5", "a whole number of at least 1"),
        ("clients-per-round", "-1", "a whole number of at least 0"),
        ("train-all", "perhaps", "true or false"),
        ("min-clients", "0", "a whole number of at least 1"),
        ("local-steps", "many", "a whole number of at least 1"),
        ("zeta", "-1", "auto or a number of at least 0"),
        ("zeta", "nan", "auto or a number of at least 0"),
        ("zeta", "automatic", "auto or a number of at least 0"),
        ("optimizer", "rmsprop", "adam or sgd"),
        ("lr-personal", "0", "a number above 0"),
        ("lr-global", "inf", "a number above 0"),
        ("compile", "perhaps", "auto, true or false"),
        ("rho-init", "99", "a number between -20 and 20"),
        ("personal-init", "fresh", "keep or reset"),
        ("beta", "abc", "a number of at least 0"),
        ("aggregation", "average", "mean, moments, trimmed-mean, median or krum"),
        ("hostile-share", "0.5", "a number of at least 0 and below 0.5"),
        ("weighting", "size", "uniform or examples"),
        ("aggregation-confidence", "on", "off, weight, or the share of clients to leave out, such as 0.3"),
        ("aggregation-confidence", "1.2", "off, weight, or the share of clients to leave out, such as 0.3"),
        ("validation-fraction", "1", "a number from 0 (off) up to, but not, 1"),
        ("dataset", "", "the name of a data set, a path or package.module:function"),
        ("layout", "ring", "labels, iid, dirichlet, rotated or mixed"),
        ("groups", "5", "2 or 4"),
        ("size", "50+0", "small, medium, large, or counts per class such as 50+950"),
        ("dirichlet-alpha", "0", "a number above 0"),
        ("model", "resnet", "dnn, mlp, vgg or package.module:function"),
        ("task", "guess", "auto, classification or regression"),
        ("test-fraction", "1", "a number above 0 and below 1"),
        ("image-size", "-1", "a whole number from 0 to 4096"),
        ("scale", "all", "pooled, site or none"),
        ("seed", "-3", "a whole number of at least 0"),
        ("device", "gpu", "auto, cpu, cuda, cuda:N or mps"),
        ("round-timeout", "0", "a number above 0"),
        ("run-name", "a/b", "letters, digits"),
        ("run-name", "..", "letters, digits"),
        ("run-name", "state", "letters, digits"),
        ("out-dir", "", "a folder"),
    ],
)
def test_a_bad_value_is_named_with_what_the_key_takes(key: str, value: str, takes: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(Settings.parse(defaults() | {key: value}))
    text = str(caught.value)
    assert text.startswith(f'The setting "{key}" takes {takes}')
    assert text.endswith(f'not "{value}".')


def test_a_share_may_come_as_a_number() -> None:
    for value in (0.3, "0.3"):
        assert Settings.parse(defaults() | {"aggregation-confidence": value}).aggregation_confidence == "0.3"


def test_settings_that_do_not_fit_together_are_one_sentence() -> None:
    assert sentence(temperature_scaling=True).startswith(
        "temperature-scaling=true chooses on validation data"
    )


def test_an_unknown_key_is_answered_with_the_closest_one() -> None:
    assert sentence(local_step=3) == 'There is no setting "local-step"; did you mean "local-steps"?'
    assert sentence(qqq=3) == 'There is no setting "qqq"; `fedbayes settings` lists them all.'


def test_a_missing_key_is_named() -> None:
    values = defaults()
    del values["zeta"]
    with pytest.raises(SettingsError, match='The setting "zeta" is missing'):
        read(Settings.parse(values))
