"""The page: whole, self-contained, and deaf to what a model wrote."""

import json
import re
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from offline_rlvr.errors import DataError
from offline_rlvr.report import plain_summary, readme_figure, render_report
from offline_rlvr.report.curves import draw_drift
from offline_rlvr.report.inert import inert, one_line, shortened
from offline_rlvr.report.record import read_run

VOID = {"meta", "img", "br", "hr", "link", "input"}
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \u202egnp.exe </pre></div>"


class Checker(HTMLParser):
    """Fails on an unbalanced tag; keeps tags, attributes and text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, self.getpos()

    def handle_data(self, data):
        self.text.append(data)


def parsed(run_dir, *, render=True):
    path = render_report(run_dir) if render else run_dir / "report.html"
    checker = Checker()
    checker.feed(path.read_text("utf-8"))
    checker.close()
    assert checker.open == []
    return checker, " ".join(" ".join(checker.text).split())


def test_whole_page(finished_run):
    page, text = parsed(finished_run, render=False)
    assert "rose from 5" in text
    for heading in (
        "Held-out accuracy over training",
        "pass@k on arithmetic, before and after",
        "Drift, nats per token",
        "K3, behavior to policy",
        "Effective sample size (ESS)",
        "Drift by reward",
        "K3 to the active reference",
        "Loss",
        "Gradient norm",
        "Entropy, nats per token",
        "Groups at each stage",
        "Right responses per sampled group",
        "Responses before and after",
        "Versions",
    ):
        assert heading in text
    assert page.tags.count("img") == 12
    assert page.tags.count("details") == 20 + 2  # pairs, config.yaml, metrics
    assert "estimates KL(behavior || policy)" in text  # the catalogue's definition


def test_nothing_is_fetched(finished_run):
    page, _ = parsed(finished_run, render=False)
    sources = [v for _, name, v in page.attributes if name in ("src", "href", "srcset", "action")]
    assert sources
    assert all(value.startswith("data:image/svg+xml;base64,") for value in sources)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    raw = (finished_run / "report.html").read_text("utf-8")
    assert "url(" not in raw
    assert "@import" not in raw
    assert len(raw) < 1_500_000


def test_same_run_same_bytes(finished_run):
    first = (finished_run / "report.html").read_bytes()
    assert render_report(finished_run).read_bytes() == first


def test_hostile_text_is_inert(make_run):
    maker = make_run().identity(
        name=HOSTILE, model=HOSTILE, objective={"name": HOSTILE}, versions={HOSTILE: HOSTILE}
    )
    maker.metrics(3).evaluation(0, 0.2, text=HOSTILE).evaluation(120, 0.9, text=HOSTILE)
    (maker.path / "config.yaml").write_text(f"# {HOSTILE}\n")
    page, text = parsed(maker.path)
    assert "script" not in page.tags
    assert "<script>alert(1)</script>" in text  # shown as text
    raw = (maker.path / "report.html").read_text("utf-8")
    assert "<script" not in raw
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", raw)
    assert "␛[31mred" in text


def test_hostile_text_is_inert_in_the_terminal(make_run):
    maker = make_run("bad\x1b[2Jname").identity().metrics(3)
    assert render_report(maker.path)  # so that the path is a line
    lines = plain_summary(maker.path)
    assert any("bad␛[2Jname" in line for line in lines)
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("updates", [0, 1, 5])
def test_unfinished_runs(make_run, updates):
    maker = make_run().identity()
    if updates:
        maker.metrics(updates)
    _, text = parsed(maker.path)
    assert f"The run is not finished: {updates} of 120 updates applied." in text
    assert "No held-out evaluation yet." in text
    assert "No verdict" in text
    assert ("metrics.jsonl has no update" in text) == (updates == 0)
    readme_figure(maker.path, maker.path / "figure.png")
    assert any("not finished" in line for line in plain_summary(maker.path))


def test_a_bare_run_json(make_run):
    """A run.json of which only the braces are there: nothing known, nothing crashes."""
    maker = make_run()
    (maker.path / "run.json").write_text("{}")
    _, text = parsed(maker.path)
    for note in ("objective not recorded", "no funnel", "does not say how many updates"):
        assert note in text


def test_a_torn_last_metric_line_is_left_out(make_run):
    maker = make_run().identity().metrics(5)
    with (maker.path / "metrics.jsonl").open("a") as file:
        file.write('{"update": 6, "train/lo')
    assert read_run(maker.path).applied == 5


def test_damage_is_named(make_run, tmp_path):
    with pytest.raises(DataError, match="not a run folder"):
        render_report(tmp_path)
    maker = make_run().identity().metrics(5)
    lines = (maker.path / "metrics.jsonl").read_text().splitlines()
    (maker.path / "metrics.jsonl").write_text("\n".join([lines[0], "{oops", *lines[2:], ""]))
    with pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        render_report(maker.path)
    (maker.path / "run.json").write_text("[")
    with pytest.raises(DataError, match=r"run\.json is not JSON"):
        render_report(maker.path)


def test_missing_values_are_gaps_not_zeros(finished_run):
    entropy = read_run(finished_run).series("policy/entropy")
    assert entropy.updates.tolist() == list(range(5, 121, 5))
    assert entropy.values.min() > 0.5


def test_a_constant_zero_metric_is_drawn(make_run):
    """Drift and K3 are exactly 0 in a run that does not move: a log axis cannot show that."""
    maker = make_run().identity()
    keys = ("drift/abs_log_ratio", "drift/k3_behavior_policy", "train/grad_norm", "weights/ess")
    rows = [{"update": u, **dict.fromkeys(keys, 0.0), "weights/ess": 1.0} for u in (1, 2, 3)]
    (maker.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, text = parsed(maker.path)
    assert "drift 0 nats per token" in text


def test_funnel_and_trained_groups(finished_run):
    _, text = parsed(finished_run, render=False)
    for words in ("sampled 9,800", "mixed 3,870", "trained on 3,820"):  # the last update is short
        assert words in text
    assert "1,512 of 78,400 responses (1.9 %) were cut" in text
    assert "12 prompt too long, 40 duplicate." in text
    first = plain_summary(finished_run)[0]
    assert first == "Groups: 9,800 sampled -> 9,776 scored -> 3,870 mixed -> 3,820 trained on"


def test_plain_summary_names_accuracies_and_page(finished_run):
    text = "\n".join(plain_summary(finished_run))
    assert "arithmetic pass@8: " in text
    assert "Held-out mean@8 rose from" in text
    assert "On the groups of update 120, before its step: drift" in text
    assert text.endswith("report.html")


def test_readme_figure_is_a_png(finished_run, tmp_path):
    path = tmp_path / "figure.png"
    readme_figure(finished_run, path)
    raw = path.read_bytes()
    assert raw.startswith(b"\x89PNG\r\n")
    readme_figure(finished_run, path)
    assert path.read_bytes() == raw


def test_inert_text():
    assert inert("a\tb\nc\r\nd") == "a\tb\nc\nd"
    assert inert("\x1b]0;x\x07\x7f\x9b") == "␛]0;x␇␡\\u009b"
    assert inert("x\u202ey\u2028z") == "x\\u202ey\\u2028z"
    assert inert("\ud800") == "\\ud800"
    assert inert("≤ 中 é 🙂") == "≤ 中 é 🙂"
    assert one_line("a\n\tb") == "a b"


def test_long_text_keeps_its_end():
    text = "start" + "x" * 5000 + "\\boxed{7}"
    short = shortened(text)
    assert short.startswith("start")
    assert short.endswith("\\boxed{7}")
    assert "[... 3,414 characters left out ...]" in short
    assert shortened("x" * 1650) == "x" * 1650


def test_a_band_shows_the_standard_error_of_the_probe(finished_run):
    ax = Figure().add_subplot()
    run = read_run(finished_run)
    draw_drift(ax, run)
    (band,) = ax.collections
    (path,) = band.get_paths()
    at = {round(x): [] for x, _ in path.vertices}
    for x, y in path.vertices:
        at[round(x)].append(y)
    update, *_, last = run.series("probe/abs_log_ratio").updates
    for number in (update, last):
        row = run.metrics[number - 1]
        value, error = row["probe/abs_log_ratio"], row["probe/abs_log_ratio_se"]
        assert min(at[number]) == pytest.approx(value - 1.96 * error)
        assert max(at[number]) == pytest.approx(value + 1.96 * error)
