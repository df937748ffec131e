"""Settings: every default is valid, and every mistake is told in one sentence that names the key."""

import pytest

from fedbayes.protocol.settings import Settings, SettingsError, app_file, defaults


def sentence(**changes: object) -> str:
    values = {key.replace("_", "-"): value for key, value in changes.items()}
    with pytest.raises(SettingsError) as caught:
        Settings.parse(defaults() | values)
    return str(caught.value)


def test_the_defaults_are_valid_and_complete() -> None:
    settings = Settings.parse(defaults())
    assert settings.method == "pfedbayes"
    assert settings.as_config() == defaults()
    assert app_file().name == "pyproject.toml"


def test_model_and_defaults_have_the_same_keys() -> None:
    assert {field.alias for field in Settings.model_fields.values()} == set(defaults())


def test_text_from_a_command_line_becomes_numbers_and_switches() -> None:
    settings = Settings.parse(defaults() | {"rounds": "7", "zeta": "0.5", "train-all": "true"})
    assert (settings.rounds, settings.zeta, settings.train_all) == (7, 0.5, True)
    for text, value in (("auto", "auto"), ("true", True), ("false", False)):
        assert Settings.parse(defaults() | {"compile": text}).compile is value


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
        ("zeta", "-1", "a number of at least 0"),
        ("zeta", "nan", "a number of at least 0"),
        ("optimizer", "rmsprop", "adam or sgd"),
        ("lr-personal", "0", "a number above 0"),
        ("lr-global", "inf", "a number above 0"),
        ("compile", "perhaps", "auto, true or false"),
        ("rho-init", "99", "a number between -20 and 20"),
        ("personal-init", "fresh", "keep or reset"),
        ("beta", "abc", "a number of at least 0"),
        ("aggregation", "median", "mean or moments"),
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
        Settings.parse(defaults() | {key: value})
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
    assert sentence(qqq=3) == 'There is no setting "qqq"; docs/settings.md lists them all.'


def test_a_missing_key_is_named() -> None:
    values = defaults()
    del values["zeta"]
    with pytest.raises(SettingsError, match='The setting "zeta" is missing'):
        Settings.parse(values)
