"""Conditions on metrics: two spellings of one thing, and what is refused."""

import pytest

from offline_rlvr.config import load_config
from offline_rlvr.errors import ConfigError


def load(folder, text, *overrides):
    path = folder / "job.yaml"
    path.write_text(text)
    return load_config(path, overrides)


@pytest.mark.parametrize(
    "text",
    [
        "train: {stop_when: {metric: weights/ess, below: 1e-3, for: 20}}",
        "train: {stop_when: {weights/ess: < 1e-3, for: 20}}",
        "train: {stop_when: {for: 20, weights/ess: <1e-3}}",
        "train:\n  stop_when:\n    weights/ess: < 0.001\n    for: 20",
    ],
)
def test_spellings_of_one_condition(tmp_path, text):
    condition = load(tmp_path, text).train.stop_when
    assert condition.terms == {"metric": "weights/ess", "below": 1e-3, "for": 20}
    assert condition.holds(9e-4)
    assert not condition.holds(1e-3)


def test_above(tmp_path):
    config = load(tmp_path, 'reference: {refresh_when: {reference/k3: "> 1"}}')
    condition = config.reference.refresh_when
    assert condition.terms == {"metric": "reference/k3", "above": 1.0, "for": 1}
    assert condition.holds(1.5)
    assert not condition.holds(1.0)
    assert config.reference.refresh_every is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{metric: weights/ess}", "one threshold, `below` or `above`"),
        ("{metric: weights/ess, below: 1, above: 2}", "one threshold"),
        ("{metric: weights/ess, below: 1, for: 0}", "train.stop_when.for"),
        ("{metric: weights/ess, bellow: 1}", "did you mean 'below'"),
        ("{metric: weights/ess, below: 1, four: 2}", "did you mean 'for'"),
        ("{below: 1}", "train.stop_when.metric"),
        ("{weights/ess: 1e-3}", "`weights/ess: < NUMBER`"),
        ("{weights/ess: < few}", "`weights/ess: < NUMBER`"),
        ("{weights/ess: < .nan}", "train.stop_when"),
        ("{weights/ess: < 1, drift/abs_log_ratio: < 1}", "weights/ess"),
        ("weights/ess", "train.stop_when"),
    ],
)
def test_what_is_no_condition(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"train: {{stop_when: {text}}}")
    assert words in caught.value.message
    assert f"{tmp_path / 'job.yaml'}:1" in caught.value.message


def test_a_layer_above_replaces_or_changes_it(tmp_path):
    text = "train: {stop_when: {metric: weights/ess, below: 1e-3, for: 20}}"
    override = ("train.stop_when.below", "1e-4")
    assert load(tmp_path, text, override).train.stop_when.below == 1e-4
    other = ("train.stop_when", "{metric: drift/abs_log_ratio, above: 1}")
    terms = load(tmp_path, text, other).train.stop_when.terms
    assert terms == {"metric": "drift/abs_log_ratio", "above": 1.0, "for": 1}
    assert load(tmp_path, text, ("train.stop_when", "null")).train.stop_when is None


@pytest.mark.parametrize("below", ["{metric: m/a, below: 0.1, for: 2}", "{m/a: < 0.1, for: 2}"])
@pytest.mark.parametrize(
    ("above", "terms"),
    [
        ("{metric: m/a, above: 0.1}", {"metric": "m/a", "above": 0.1, "for": 1}),
        ("{metric: m/a, below: 0.1}", {"metric": "m/a", "below": 0.1, "for": 1}),
        ("{m/a: '> 0.1'}", {"metric": "m/a", "above": 0.1, "for": 1}),
        ("{m/b: < 5, for: 3}", {"metric": "m/b", "below": 5.0, "for": 3}),
        ("{for: 3}", {"metric": "m/a", "below": 0.1, "for": 3}),
    ],
)
@pytest.mark.parametrize("key", ["train.stop_when", "reference.refresh_when", "old.refresh_when"])
def test_a_condition_with_a_metric_replaces_the_one_below_whole(tmp_path, key, below, above, terms):
    section, name = key.split(".")
    text = f"{section}: {{{name}: {below}}}"
    config = load(tmp_path, text, (key, above))
    assert getattr(getattr(config, section), name).terms == terms
    (tmp_path / "over.yaml").write_text(f"base: job.yaml\n{section}: {{{name}: {above}}}")
    assert load_config(tmp_path / "over.yaml").model_dump() == config.model_dump()
    edited = load(tmp_path, text, (f"{key}.for", "5"), (f"{key}.below", "7"))
    assert getattr(getattr(edited, section), name).terms == {
        "metric": "m/a",
        "below": 7.0,
        "for": 5,
    }


def test_the_resolved_file_says_the_same(tmp_path):
    config = load(tmp_path, "train: {stop_when: {weights/ess: < 1e-3, for: 20}}")
    again = load(tmp_path, config.to_yaml())
    assert again.model_dump() == config.model_dump()
