"""A run folder with plausible numbers, written through the real file formats."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from offline_rlvr.evaluation import Evaluation, evaluation_path, write_evaluation
from offline_rlvr.evaluation.records import Sampled
from offline_rlvr.records import Problem, Verdict
from offline_rlvr.report import render_report
from offline_rlvr.stream import Journal

SPEC = importlib.util.spec_from_file_location("chromium", Path(__file__).with_name("chromium.py"))
chromium = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(chromium)

UPDATES, GROUPS_PER_UPDATE, K = 120, 32, 8
CONFIG = """\
model:
  name_or_path: builtin
objective:
  name: ggpo
  beta: 0.01
reference:
  refresh_every: 40
train:
  groups_per_update: 32
"""
HOSTILE = "<script>alert(1)</script> \x1b[31mred\x1b[0m \u202egnp.exe </pre></div>"


class RunMaker:
    """Writes a run folder piece by piece: `RunMaker(path).identity().metrics()`."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def identity(self, **changes):
        run = {
            "name": self.path.name,
            "objective": {"name": "ggpo", "beta": 0.01},
            "pool": {"path": "pools/sums", "hash": "4f1d" * 16, "commit": 31},
            "plan": {
                "hash": "ab12" * 16,
                "updates": UPDATES,
                "groups_per_update": GROUPS_PER_UPDATE,
                "groups": UPDATES * GROUPS_PER_UPDATE - 20,
            },
            "versions": {"offline_rlvr": "0.1.0", "torch": "2.13.0", "python": "3.11.9"},
            "model": {"name_or_path": "builtin", "revision": None, "lora": None},
            "funnel": {
                "sampled_groups": 9800,
                "all_right": 2860,
                "all_wrong": 3046,
                "mixed": 3870,
                "unscored_groups": 24,
                "unscored_responses": 31,
                "sampled_responses": 78400,
                "group_size": K,
                "truncated_responses": 1512,
                "correct_per_group": [3046, 760, 560, 480, 440, 460, 520, 650, 2860],
                "drops": {"prompt_too_long": 12, "duplicate": 40, "engine_error": 0},
            },
            "created": "2026-05-04T09:30:00+00:00",
        }
        (self.path / "run.json").write_text(json.dumps({**run, **changes}))
        (self.path / "config.yaml").write_text(CONFIG)
        return self

    def metrics(self, updates=UPDATES, refresh_every=40):
        journal = Journal(self.path / "metrics.jsonl")
        rng = np.random.default_rng(0)
        rows = []
        for update in range(1, updates + 1):
            progress = update / UPDATES
            age = (update - 1) % refresh_every / refresh_every
            drift = 0.004 + 0.03 * progress**0.8 * np.exp(rng.normal(0, 0.04))
            row = {
                "update": update,
                "train/loss": 0.9 - 0.5 * progress + rng.normal(0, 0.03),
                "train/grad_norm": 0.4 * np.exp(rng.normal(0, 0.15) - 0.5 * progress),
                "train/learning_rate": 1e-6,
                "time/update_s": 11.2 + rng.normal(0, 0.2),
                "drift/abs_log_ratio": drift,
                "drift/k3_behavior_policy": drift**2 * 1.8,
                "drift/fraction_above_0.1": min(1.0, drift * 2),
                "drift/abs_log_ratio/right": drift * 0.7,
                "drift/abs_log_ratio/wrong": drift * 1.3,
                "weights/ess": float(np.clip(np.exp(-5.5 * progress**0.7), 1 / 2048, 1)),
                "reference/k3": 1e-5 + 4e-4 * age,
                "reference/log_ratio_nats": 0.8 * age,
                "policy/entropy": 0.62 - 0.1 * progress if update % 5 == 0 else None,
                "gibbs/ess_q_median": 1.4 + 0.6 * rng.random(),
                "probe/abs_log_ratio": drift * 0.9,
                "probe/abs_log_ratio_se": drift * 0.1,
                "probe/k3_behavior_policy": drift**2 * 1.5,
            }
            if update == 1:
                row["drift/noise_floor"] = 0.0038
            rows.append({k: v if v is None else float(v) for k, v in row.items() if k != "update"})
            rows[-1] = {"update": update, **rows[-1]}
        journal.path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return self

    def evaluation(self, update, skill, *, name="arithmetic", problems=150, n=8, text=None, **kw):
        """`skill` is the mean accuracy; the same problems keep their difficulty across updates."""
        result = evaluation(update, skill, name=name, problems=problems, n=n, text=text, **kw)
        write_evaluation(evaluation_path(self.path, name, update), result)
        return self


def evaluation(update, skill, *, name, problems, n, text=None, unscored=0.0):
    """Beta-distributed difficulty, seeded by the set and update."""
    seed = sum(map(ord, name))
    ease = np.random.default_rng(seed).beta(1.1, 1.1, problems)
    rng = np.random.default_rng([seed, update])
    chance = np.clip(ease + skill - ease.mean(), 0.01, 0.99)
    right = rng.random((problems, n)) < chance[:, None]
    lost = rng.random((problems, n)) < unscored
    asked = [
        Problem(
            f"{name}-{p}",
            f"A shop sells {p + 3} boxes of {p % 9 + 2} pens. How many pens?",
            str((p + 3) * (p % 9 + 2)),
        )
        for p in range(problems)
    ]

    def response(p, i):
        value = int(asked[p].answer) + (0 if right[p, i] else 1 + i)
        said = text or (
            f"Each box has {p % 9 + 2} pens and there are {p + 3} boxes.\n"
            f"So the number of pens is {p + 3} * {p % 9 + 2} = {value}.\n\\boxed{{{value}}}"
        )
        length = 40 + int(rng.integers(60))
        return Sampled(said, length, "length" if length > 96 else "stop")

    return Evaluation.of(
        name,
        update,
        asked,
        [[response(p, i) for i in range(n)] for p in range(problems)],
        [
            [
                Verdict("timeout" if lost[p, i] else "correct" if right[p, i] else "incorrect")
                for i in range(n)
            ]
            for p in range(problems)
        ],
    )


@pytest.fixture
def make_run(tmp_path):
    """`make_run("name")` -> RunMaker of an empty run folder."""
    return lambda name="ggpo-demo": RunMaker(tmp_path / "runs" / name)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory):
    """A whole run that improved, with its page: read only."""
    maker = RunMaker(tmp_path_factory.mktemp("runs") / "ggpo-demo").identity().metrics()
    for update, skill in ((0, 0.53), (60, 0.58), (120, 0.65)):
        maker.evaluation(update, skill)
    render_report(maker.path)
    return maker.path


@pytest.fixture
def browse(tmp_path):
    """`browse(file, width, **how)` -> the page, open in a real headless browser."""
    if chromium.BROWSER is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    pages = []

    def opened(path, width, **how):
        page = chromium.Page(tmp_path / f"browser {len(pages)}", width, **how)
        pages.append(page)
        page.open(path)
        return page

    yield opened
    for page in pages:
        page.close()
