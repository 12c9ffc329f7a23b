"""Comparing runs: what the page says is what the runs hold, and nothing else is compared."""

import csv
import json
import os
import re
import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from offline_rlvr.config import load_config
from offline_rlvr.errors import BusyError, ConfigError, DataError, IncompatibleError
from offline_rlvr.evaluation import (
    Interval,
    read_evaluation,
    read_evaluations,
    write_evaluation,
)
from offline_rlvr.lock import OWNER_NAME
from offline_rlvr.numerics.pass_at_k import pass_at_k
from offline_rlvr.report import render_report
from offline_rlvr.report.compare import compare_runs
from offline_rlvr.report.compare.methods import read_methods
from offline_rlvr.report.compare.sentences import best_of, how_sure, single_answer, verdict
from offline_rlvr.report.compare.standings import Field, Pair
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.run import train

HOSTILE = "<script>alert(1)</script>\x1b[31m|"
SETTINGS = {
    "model.name_or_path": "builtin",
    "objective.name": "ggpo",
    "train.seed": 0,
    "train.learning_rate": 1e-6,
    "evaluation.k": 8,
    "evaluation.seed": 1234,
    "evaluation.problems.name": "arithmetic",
}


@pytest.fixture(scope="module")
def trained(small_job, small_pool, tmp_path_factory):
    """Two methods with two seeds each, really trained: six updates of four groups."""
    folder = tmp_path_factory.mktemp("compared") / "runs é"
    for seed in (0, 1):
        for name in ("ggpo", "pg"):
            objective = [("objective.name", name)] if name != "ggpo" else []
            config = load_config(small_job, [*objective, ("train.seed", str(seed))])
            train(config, small_pool, folder / f"{name}-{seed}")
    return folder


@pytest.fixture(scope="module")
def compared(trained, tmp_path_factory):
    return compare_runs([trained], tmp_path_factory.mktemp("output") / "comparison")


@pytest.fixture
def made(make_run):
    """`made(name, skill, **settings)` -> folder of a run with that accuracy at its end."""

    def make(
        name, skill=0.6, *, updates=120, planned=120, evaluated=(0, 120), part=None, **changed
    ):
        settings = {**SETTINGS, **{key.replace("__", "."): v for key, v in changed.items()}}
        plan = {"hash": f"{settings['train.seed']:04}", "updates": planned, "groups_per_update": 32}
        maker = make_run(name).identity(settings=settings, plan=plan, **(part or {}))
        maker.metrics(updates)
        for update in evaluated:
            maker.evaluation(update, 0.5 if update == 0 else skill)
        return maker.path

    return make


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_standings_are_the_means_of_the_evaluation_files(trained, compared):
    for method in compared.facts["methods"]:
        runs = [trained / f"{method['name']}-{seed}" for seed in (0, 1)]
        assert method["runs"] == {str(seed): str(run) for seed, run in enumerate(runs)}
        before, after = (
            [e.rewards.mean() for run in runs for e in read_evaluations(run) if e.update == update]
            for update in (0, 6)
        )
        assert method["mean@4"]["value"] == pytest.approx(np.mean(after))
        assert method["gain"]["value"] == pytest.approx(np.mean(after) - np.mean(before))
        drifts = [
            [row["drift/abs_log_ratio"] for row in read_rows(run / "metrics.jsonl")][-8:]
            for run in runs
        ]
        assert method["drift"] == pytest.approx(np.mean(drifts))
    (pair,) = compared.facts["pairs"]
    means = {method["name"]: method["mean@4"]["value"] for method in compared.facts["methods"]}
    difference = pair["difference"]["value"]
    assert difference == pytest.approx(means[pair["first"]] - means[pair["second"]], abs=1e-12)
    assert np.mean(list(pair["by_seed"].values())) == pytest.approx(difference, abs=1e-12)


def test_a_run_that_ended_itself_is_compared_and_said_to_be_shorter(
    trained, small_job, small_pool, tmp_path
):
    stop = ("train.stop_when", "{metric: drift/abs_log_ratio, above: 0, for: 3}")
    for seed in (0, 1):
        config = load_config(small_job, [stop, ("train.seed", str(seed))])
        train(config, small_pool, tmp_path / f"short-{seed}")
    runs = [*(tmp_path / f"short-{seed}" for seed in (0, 1)), *sorted(trained.glob("ggpo-*"))]
    result = compare_runs(runs, tmp_path / "comparison")
    names = [method["name"] for method in result.facts["methods"]]
    condition = "metric drift/abs_log_ratio, above 0, for 3"
    assert sorted(names) == ["ggpo train.stop_when=" + words for words in (condition, "none")]
    words = f"Ended early by train.stop_when: ggpo train.stop_when={condition} after update 3"
    assert words in result.page.read_text()
    assert "(seed 0), ggpo" in (result.page.parent / "compare.md").read_text()


def test_files_hold_the_same_numbers(trained, compared):
    folder = compared.page.parent
    rows = rows_of(folder / "accuracy.csv")
    assert len(rows) == 4 * 2 * 4  # runs, updates, mean@4 and pass@1, 2, 4
    run = trained / "pg-1"
    last = next(e for e in read_evaluations(run) if e.update == 6)
    found = {
        row["metric"]: float(row["value"])
        for row in rows
        if row["run"] == str(run) and row["update"] == "6"
    }
    right = last.rewards.sum(1).astype(int)
    expected = {f"pass@{k}": pass_at_k(np.full(5, 4), right, k).mean() for k in (1, 2, 4)}
    assert found == pytest.approx({"mean@4": last.rewards.mean(), **expected})
    assert {row["metric"] for row in rows_of(folder / "pairs.csv")} == {"mean@4", "pass@4"}
    drift = rows_of(folder / "figures/drift_abs_log_ratio.csv")
    mine = [float(row["drift/abs_log_ratio"]) for row in drift if row["line"] == "ggpo"]
    series = [
        [row["drift/abs_log_ratio"] for row in read_rows(trained / f"ggpo-{s}" / "metrics.jsonl")]
        for s in (0, 1)
    ]
    assert mine == pytest.approx(np.mean(series, axis=0).tolist())
    for path in (folder / "figures").glob("*.csv"):
        assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_the_page_shows_every_figure_and_fetches_nothing(compared):
    text = compared.page.read_text("utf-8")
    for title in (
        "Gain over the base model",
        "against updates",
        "with the base model&#39;s own",
        "by difficulty",
        "Drift, nats per token",
        "K3, behavior to policy",
        "Effective sample size",
        "ESS against drift",
        "Drift by reward",
        "Drift by position",
        "Drift by behavior probability",
        "Within-success ESS",
        "Penalized right responses",
        "Entropy",
        "Gradient norm",
        "Length of the answers",
    ):
        assert title in text, title
    assert all(v.startswith("data:image/svg+xml;base64,") for v in re.findall('src="([^"]*)', text))
    assert "<script" not in text
    markdown = compared.page.with_suffix(".md").read_text()
    pictures = re.findall(r"\]\((figures/\w+\.png)\)", markdown)
    assert len(pictures) == text.count("<img ")
    assert all((compared.page.parent / picture).is_file() for picture in pictures)
    assert compared.facts["verdict"] in markdown


def test_the_same_runs_give_the_same_bytes(trained, compared, tmp_path):
    compare_runs(sorted(trained.iterdir()), tmp_path)
    names = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()}
    for name in names:
        assert (tmp_path / name).read_bytes() == (compared.page.parent / name).read_bytes(), name


@pytest.fixture(scope="module")
def report(trained):
    return render_report(trained / "ggpo-0")


@pytest.mark.parametrize("width", [390, 1200])
@pytest.mark.parametrize("which", ["comparison", "report"])
def test_the_page_in_a_real_browser(compared, report, browse, tmp_path, which, width):
    file = compared.page if which == "comparison" else report
    page = browse(file, width, phone=width == 390)
    assert page.problems() == []
    sent = [address for address in page.requests() if not address.startswith("data:")]
    assert sent == [file.resolve().as_uri()]
    assert page.value("document.documentElement.scrollWidth") == width
    broken = "[...document.images].filter(i => !i.complete || i.naturalWidth === 0).length"
    assert page.value(broken) == 0
    sizes = "[...document.querySelectorAll('p, li, td')].map(e => getComputedStyle(e).fontSize)"
    assert min(float(size.removesuffix("px")) for size in page.value(sizes)) >= 11
    page.screenshot(tmp_path / "page.png", whole=True)
    pixels = imread(tmp_path / "page.png")
    assert pixels.shape[1] == width
    assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 50
    # No part is empty: text and figures go all the way down.
    assert all(half.std() > 0.02 for half in np.array_split(pixels, 4, axis=0))


def test_printed_on_paper_nothing_is_cut(compared, browse):
    page = browse(compared.page, 718, printed=True)  # A4 between its margins
    assert page.value("document.documentElement.scrollWidth") == 718
    cut = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > 718).length"
    assert page.value(cut) == 0


@pytest.mark.parametrize(
    ("difference", "sentence"),
    [
        ((0.031, 0.012, 0.050), "ggpo beats grpo by 3.1 points [1.2, 5.0]."),
        ((-0.031, -0.050, -0.012), "grpo beats ggpo by 3.1 points [1.2, 5.0]."),
        (
            (0.004, -0.015, 0.022),
            "ggpo and grpo: no difference shown, +0.4 points [-1.5, 2.2].",
        ),
        (
            (0.004, np.nan, np.nan),
            "ggpo and grpo: +0.4 points; too few problems to say more.",
        ),
    ],
)
def test_a_sentence_for_each_pair(difference, sentence):
    assert Pair("ggpo", "grpo", Interval(*difference, 200), {0: difference[0]}).sentence == sentence


def test_a_clear_winner_and_a_tie(made):
    paths = [
        made("ggpo", 0.8),
        made("pg", 0.6, objective__name="pg"),
        made("agro", 0.6, objective__name="agro", objective__beta=1.0),
    ]
    field = Field(read_methods(paths))
    won, sentence = verdict(field)
    assert won
    assert sentence.startswith("ggpo won (mean@8 ")
    assert "it beats every other method" in sentence
    assert "There is one seed" in how_sure(field)
    paths.append(made("cispo", 0.8, objective__name="cispo"))
    won, sentence = verdict(Field(read_methods(paths)))
    assert not won
    assert "no difference is shown to cispo; it beats the 2 others" in sentence


def test_seeds_that_not_every_method_has_are_left_out_and_named(made):
    """The better seed of one method is no advantage over a method that was not trained with it."""
    paths = [
        made("ggpo-0", 0.6),
        made("pg-0", 0.7, objective__name="pg"),
        made("ggpo-1", 0.9, train__seed=1),
    ]
    field = Field(read_methods(paths))
    assert field.seeds == [0]
    assert verdict(field)[1].startswith("pg won")
    assert "Left out, since not every method has that seed: ggpo seed 1." in how_sure(field)
    with pytest.raises(IncompatibleError, match=r"no seed is common .*pg: 0; ggpo: 1"):
        read_methods(paths[1:])


def test_answers_of_different_engines_are_not_compared(trained, tmp_path):
    runs = [shutil.copytree(trained / f"{name}-0", tmp_path / name) for name in ("ggpo", "pg")]
    (file,) = (runs[1] / "evaluations").glob("*-000006.parquet")
    result = read_evaluation(file)
    assert result.engine == "transformers float32"
    write_evaluation(file, replace(result, engine="vllm bfloat16"))
    with pytest.raises(
        IncompatibleError, match="what answered: transformers float32 -> vllm bfloat16"
    ):
        read_methods(runs)


def test_how_many_base_answers_are_as_good_as_one(made):
    field = Field(read_methods([made("ggpo", 0.62), made("pg", 0.5, objective__name="pg")]))
    base = field.base("arithmetic")[0]
    right = base.rewards.sum(1).astype(int)
    reach = [pass_at_k(np.full(150, 8), right, k).mean() for k in range(1, 9)]
    for method in field.methods:
        mean = method.evaluations("arithmetic")[0].rewards.mean()
        expected = next(k for k, value in enumerate(reach, 1) if value >= mean)
        assert best_of(field, "arithmetic")[method.name] == expected
    k = best_of(field, "arithmetic")["ggpo"]
    assert k > 1
    words = (
        f"a single answer of ggpo beats the base model's best of {k - 1}, but not its best of {k}."
    )
    assert single_answer(field, "arithmetic").endswith(words)


def test_runs_that_differ_in_their_seeds_are_one_method(made):
    paths = [
        made("a", train__seed=0),
        made("b", train__seed=1, evaluation__seed=7),
        made("c", train__seed=0, train__learning_rate=2e-6),
        made("d", train__seed=1, evaluation__seed=7, train__learning_rate=2e-6),
    ]
    names = {method.name: sorted(method.runs) for method in read_methods(paths)}
    assert names == {
        "ggpo train.learning_rate=1e-06": [0, 1],
        "ggpo train.learning_rate=2e-06": [0, 1],
    }


def test_methods_of_a_study_keep_its_names(made):
    betas = {"warm": 1.0, "cold": 0.01}
    paths = [
        made(f"{name}-{seed}", train__seed=seed, objective__beta=beta)
        for name, beta in betas.items()
        for seed in (0, 7)
    ]
    assert {m.name for m in read_methods(paths)} == {"ggpo beta=1", "ggpo beta=0.01"}
    jobs = paths[0].parent / "jobs"
    jobs.mkdir()
    for path in paths:
        (jobs / f"{path.name}.yaml").touch()
    loose = made("other", objective__beta=0.1)
    methods = {m.name: m.settings for m in read_methods([*paths, loose])}
    assert methods == {
        "warm": {"objective.beta": 1.0},
        "cold": {"objective.beta": 0.01},
        "ggpo beta=0.1": {"objective.beta": 0.1},
    }
    made("study/warm-0", objective__beta=10.0)
    (jobs.parent / "study/jobs").mkdir()
    (jobs.parent / "study/jobs/warm-0.yaml").touch()
    names = {m.name for m in read_methods([*paths, jobs.parent / "study/warm-0"])}
    assert names == {"ggpo beta=1", "ggpo beta=0.01", "ggpo beta=10"}


def test_what_cannot_be_compared_is_refused_by_name(made, tmp_path):
    first = made("first")

    def refused(error, words, *paths):
        with pytest.raises(error, match=words):
            read_methods([first, *paths])

    other = made("pool", part={"pool": {"path": "pools/other", "hash": "x", "commit": 3}})
    refused(IncompatibleError, r"pool: pools/sums, commit 31 -> pools/other, commit 3", other)
    plan = made("plan", part={})
    facts = json.loads((plan / "run.json").read_text())
    facts["plan"]["hash"] = "ffff"
    facts["settings"] |= {"selection.min_correct": 2, "objective.name": "pg"}
    (plan / "run.json").write_text(json.dumps(facts))
    refused(IncompatibleError, r"plan of seed 0: 0000 -> ffff\n  selection.min_correct: None", plan)
    refused(IncompatibleError, r"evaluation.k: 8 -> 16", made("k", evaluation__k=16))
    longer = made("longer", updates=120, planned=110)
    refused(IncompatibleError, "updates: 120 -> 110", longer)
    refused(IncompatibleError, r"(?s)no evaluation.*rlvr evaluate", made("bare", evaluated=()))
    early = made("early", evaluated=(0, 60))
    refused(IncompatibleError, "both 0 and 120 are needed", early)
    half = made("half", updates=60)
    refused(IncompatibleError, r"60 of 120 updates.*\n.*offline-rlvr resume", half)
    refused(ConfigError, "named twice", first)
    refused(ConfigError, "same method with the same seed 0", made("copy"))
    refused(DataError, "not a run folder", tmp_path / "none")
    with pytest.raises(ConfigError, match=r"(?s)one run.*offline-rlvr report"):
        read_methods([first])
    with pytest.raises(ConfigError, match="no run is named"):
        read_methods([])


def test_a_run_at_work_is_named_as_such(made):
    half = made("half", updates=60)
    owner = {"pid": os.getpid(), "host": socket.gethostname()}
    (half / OWNER_NAME).write_text(json.dumps(owner))
    with pytest.raises(BusyError, match="still training"):
        read_methods([made("first"), half])


def test_hostile_names_are_text(made, tmp_path):
    paths = [made("one", objective__name=HOSTILE), made("two", 0.7, objective__name="pg")]
    compared = compare_runs(paths, tmp_path / "out")
    page, markdown = (compared.page.with_suffix(s).read_text("utf-8") for s in (".html", ".md"))
    assert "<script" not in page
    assert "<script" not in markdown
    assert all(line.isprintable() for line in compared.lines)


def test_two_sets_weigh_by_problems(make_run, tmp_path):
    paths = []
    for name, skills in (("ggpo", (0.8, 0.6)), ("pg", (0.5, 0.5))):
        settings = {**SETTINGS, "objective.name": name}
        plan = {"hash": "0", "updates": 120, "groups_per_update": 32}
        maker = make_run(name).identity(settings=settings, plan=plan).metrics()
        for set_name, problems, skill in zip(("sums", "words"), (150, 50), skills, strict=True):
            maker.evaluation(0, 0.5, name=set_name, problems=problems)
            maker.evaluation(120, skill, name=set_name, problems=problems)
        paths.append(maker.path)
    field = Field(read_methods(paths))
    rewards = [e.rewards for e in read_evaluations(paths[0]) if e.update == 120]
    best = field.standings[0]
    assert best.mean.value == pytest.approx(np.concatenate([r.mean(1) for r in rewards]).mean())
    assert best.mean.problems == 200
    page = compare_runs(paths, tmp_path / "out").page.read_text("utf-8")
    assert "all sets, each problem weighing the same" in page
    assert "words, 50 problems" in page


@pytest.mark.parametrize("unscored", [0.3, 0.95])
def test_unscored_answers_are_left_out(make_run, tmp_path, unscored):
    paths = []
    for name, skill in (("ggpo", 0.9), ("pg", 0.5)):
        plan = {"hash": "0", "updates": 120, "groups_per_update": 32}
        settings = {**SETTINGS, "objective.name": name}
        maker = make_run(name).identity(settings=settings, plan=plan).metrics()
        maker.evaluation(0, 0.5).evaluation(120, skill, unscored=unscored)
        paths.append(maker.path)
    rewards = next(e.rewards for e in read_evaluations(paths[0]) if e.update == 120)
    scored = rewards[~np.isnan(rewards).all(1)]
    best = Field(read_methods(paths)).standings[0]
    assert best.method.name == "ggpo"
    assert best.mean.value == pytest.approx(np.nanmean(scored, axis=1).mean())
    assert best.mean.problems == len(scored)
    text = compare_runs(paths, tmp_path / "out").page.read_text("utf-8")
    assert ("not measured" in text) == (unscored > 0.5)  # pass@8 needs eight scored answers


def test_the_verb(trained, command, tmp_path):
    code, output = command("compare", trained, "--output", tmp_path / "out", "--json")
    assert code == 0, output
    assert {m["name"] for m in json.loads(output)["methods"]} == {"ggpo", "pg"}
    code, output = command("compare", trained / "pg-0")
    assert code == 2
    assert "offline-rlvr report" in output
