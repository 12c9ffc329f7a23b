"""The run folder: what identifies a run, and the refusal to mix two runs in one."""

import datetime
import re
import shutil
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from offline_rlvr.config import Config
from offline_rlvr.dotted import leaves
from offline_rlvr.durable import make_folder, write_file
from offline_rlvr.errors import DataError, IncompatibleError
from offline_rlvr.generation import Sampling
from offline_rlvr.pool import Pool
from offline_rlvr.pool.commits import read_sealed, seal
from offline_rlvr.pool.selection import Selected
from offline_rlvr.pool.summary import funnel
from offline_rlvr.stream import Plan, read_rows

#: Settings that may differ when a run is continued: they change how long, how often or where, not
#: what is computed.
MAY_CHANGE = {
    "train.max_updates",  # upwards only where an anchor's window ends
    "train.checkpoint_every",
    "train.micro_batch_tokens",  # downwards, other rounding
    "train.keep_checkpoints",
    "train.keep_best",
    "train.stop_when",  # a changed condition is counted anew, and lifts an earlier stop
    "train.devices",  # the same sums in another order
    "train.strategy",
    "evaluation.every",
    "evaluation.generation",  # who answers, not what is asked
    "model.device",
    "logger",
}
#: What a run cannot be continued or shown without, by part of `run.json`.
REQUIRED: dict[str, dict[str, type]] = {
    "plan": {"hash": str, "updates": int, "groups_per_update": int},
    "pool": {"hash": str, "path": str, "commit": int},
    "objective": {"name": str},
    "model": {"name_or_path": str},
    "settings": {},
    "sampling": {},
}
#: What may be done where `run.json` is damaged.
RESTORE = "restore it from a copy of the run, or start a new run under another name"
#: What a start that was stopped before its first update may leave behind.
UNFINISHED = {"plan.parquet", "config.yaml", "run.json", "checkpoints", "anchors"} | {
    "ledger.jsonl",
    "metrics.jsonl",
    "ledger.discarded.jsonl",
    "report.html",
    "profile.md",
    "profile.json",
    "mlflow.db",
    *("csv", "tensorboard", "wandb"),
}
#: Folders of a run in which files are written and removed.
PARTS = {"checkpoints", "anchors", "responses", "evaluations"}
RECORDED_VERSIONS = (
    "offline-rlvr",
    "torch",
    "transformers",
    "peft",
    "lightning",
    "pyarrow",
    "math-verify",
)


@dataclass(frozen=True)
class RunFolder:
    """`runs/NAME` with its identity.

    Attributes:
        path: The folder.
        facts: Content of `run.json`.
    """

    path: Path
    facts: dict[str, Any]

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @classmethod
    def create_or_open(
        cls,
        path: Path,
        config: Config,
        pool: Pool,
        selected: Selected,
        plan: Plan,
        sampling: Sampling,
    ) -> "RunFolder":
        """Start a run folder, or check that this config, pool and plan continue the one there.

        The caller holds the folder's lock, and calls `keep_config` when the run really goes on:
        until then, a run that is continued keeps the config of its last start.

        Raises:
            IncompatibleError: Another config, pool or plan; names each difference.
            DataError: The folder holds something else or is damaged.
        """
        _refuse_links(path)
        make_folder(path / "checkpoints")
        if (path / "run.json").exists() and (run := cls.open(path)).started:
            run._refuse_others(config, pool, plan)
            return run
        _make_room(path)
        facts = {
            "schema_version": 1,
            "name": path.name,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "objective": config.objective.model_dump(),
            "model": pool.identity["model"],
            "pool": {"path": str(pool.path), "hash": pool.hash, "commit": pool.commit},
            "selection": {
                "mixed": selected.mixed,
                "removed": selected.removed,
                "left": len(selected.training_ids),
            },
            "plan": {
                "hash": plan.hash,
                "updates": plan.updates,
                "groups_per_update": plan.groups_per_update,
                "groups": len(plan.group_ids),
            },
            "sampling": asdict(sampling),
            "behavior_logprobs": pool.identity["sampling"].get("logprobs"),
            "settings": _settings(config),
            "funnel": funnel(pool),
            "versions": {name: version(name) for name in RECORDED_VERSIONS},
        }
        run = cls(path, facts)
        plan.save(path / "plan.parquet")
        run.keep_config(config)
        # Last: a folder with run.json is a run.
        write_file(path / "run.json", seal(facts), replace=True)
        return run

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run.

        Raises:
            DataError: There is none, or `run.json` is damaged.
        """
        if not (path / "run.json").exists():
            raise DataError(f"{path} is not a run: it has no run.json", hint="`ls runs`")
        for name in ("config.yaml", "plan.parquet"):
            if not (path / name).is_file():  # reading a pipe would never end
                raise DataError(f"{path / name} is missing or not a file", hint=RESTORE)
        try:
            facts, _ = read_sealed(path / "run.json", RESTORE)
            for part, kinds in REQUIRED.items():
                if not isinstance(facts[part], dict):
                    raise TypeError(f"{part} is not an object")
                for key, kind in kinds.items():
                    if not isinstance(facts[part][key], kind):
                        raise TypeError(f"{part}.{key} is not {kind.__name__}")
        except (KeyError, TypeError) as error:
            raise DataError(f"{path / 'run.json'} is damaged: {error}") from error
        return cls(path, facts)

    def keep_config(self, config: Config) -> None:
        """Put the config in the place of that of the last start."""
        write_file(self.path / "config.yaml", config.to_yaml().encode(), replace=True)

    @property
    def started(self) -> bool:
        """Whether an update was ever applied; until then the settings may still change."""
        ledgers = (self.path / "ledger.jsonl", self.path / "ledger.discarded.jsonl")
        trained = any(True for ledger in ledgers for _ in read_rows(ledger))
        return trained or any(self.checkpoints.iterdir())

    def next_attempt(self) -> int:
        """1 for the first start, one more after every stop that left ledger lines."""
        rows = [
            *read_rows(self.path / "ledger.jsonl"),
            *read_rows(self.path / "ledger.discarded.jsonl"),
        ]
        numbers = [row["attempt"] for row in rows if isinstance(row.get("attempt"), int)]
        return 1 + max(numbers, default=0)

    def differences(self, config: Config) -> list[str]:
        """Settings of a config that identify a run and are not this run's."""
        stored, given = self.facts["settings"], _settings(config)
        return [
            f"{key}: {stored.get(key)!r} -> {given.get(key)!r}"
            for key in sorted(stored.keys() | given.keys())
            if stored.get(key) != given.get(key)
        ]

    def _refuse_others(self, config: Config, pool: Pool, plan: Plan) -> None:
        differing = self.differences(config)
        if self.facts["pool"]["hash"] != pool.hash:
            differing.append(f"pool: commit {self.facts['pool']['commit']} -> {pool.commit}")
        stored_plans = {self.facts["plan"]["hash"], Plan.load(self.path / "plan.parquet").hash}
        if not differing and stored_plans != {plan.hash}:
            differing.append("the stored plan (plan.parquet or run.json was changed)")
        if differing:
            raise IncompatibleError(
                f"{self.path} was started with other settings:\n  " + "\n  ".join(differing),
                hint="choose another --run, or go back to the stored settings; these may change: "
                + ", ".join(sorted(MAY_CHANGE)),
            )


def checkpoints_of(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; other files beside them are nobody's business."""
    return sorted(p for p in folder.glob("update-*") if re.fullmatch(r"update-\d{6}", p.name))


def update_of(checkpoint: Path) -> int:
    """The update that a checkpoint is of."""
    return int(checkpoint.name.removeprefix("update-"))


def _make_room(path: Path) -> None:
    """Remove what an unfinished start, maybe with other settings, has measured.

    Raises:
        DataError: The folder holds something else.
    """
    measured = {"evaluations", "loggers.json"}
    strangers = {e.name for e in path.iterdir() if not e.name.startswith(".")}
    strangers -= UNFINISHED | measured
    if strangers:
        raise DataError(
            f"{path} is not a run and holds {', '.join(sorted(strangers)[:3])}",
            hint="choose another --run",
        )
    made_later = [*measured, "ledger.jsonl", "anchors", "checkpoints/*"]
    if not (path / "run.json").exists() and any(any(path.glob(name)) for name in made_later):
        raise DataError(f"{path} holds what a run has made, but no run.json", hint=RESTORE)
    shutil.rmtree(path / "evaluations", ignore_errors=True)
    (path / "loggers.json").unlink(missing_ok=True)


def _settings(config: Config) -> dict[str, Any]:
    """Flat dotted settings that identify a run."""
    return {
        name: value
        for name, value in leaves(config.model_dump(mode="json"))
        if not f"{name}.".startswith(tuple(f"{key}." for key in MAY_CHANGE))
    }


def _refuse_links(path: Path) -> None:
    """What lies behind a link is not this run's to change or remove."""
    for part in sorted(PARTS):
        if (path / part).is_symlink():
            raise DataError(
                f"{path / part} is a link; a run is only continued in folders of its own",
                hint="put the folder itself in its place, or choose another --run",
            )
