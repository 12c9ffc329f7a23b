"""Lightning loggers by config name: curves of a run beside its `metrics.jsonl`.

A logger whose data are files of the run (`csv`, `tensorboard`, `wandb` offline) is written anew at
every start, from `metrics.jsonl` and the stored evaluations. A tracking service (`wandb`, `mlflow`,
`trackio`) is continued under the same id after the last update it was given, kept in
`loggers.json`. Either way there is one curve with each update once, whatever ended the run, and a
logger that is added later has the whole run.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger

from offline_rlvr.config import Config
from offline_rlvr.dotted import leaves
from offline_rlvr.durable import file_sha256, write_file
from offline_rlvr.errors import ConfigError, DataError, ResourceError
from offline_rlvr.evaluation import Evaluation, read_evaluations
from offline_rlvr.stream import read_rows
from offline_rlvr.trainer.trackio_logger import TrackioLogger

PROJECT = "offline-rlvr"
STATE_FILE = "loggers.json"


def _csv(run: Path, **params: Any) -> Logger:
    settings = {"flush_logs_every_n_steps": 1, **params}
    return loggers.CSVLogger(save_dir=run, name="csv", version="", **settings)


def _tensorboard(run: Path, **params: Any) -> Logger:
    settings = {"default_hp_metric": False, **params}
    return loggers.TensorBoardLogger(save_dir=run, name="tensorboard", version="", **settings)


def _wandb(run: Path, **params: Any) -> Logger:
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    settings = {"name": run.resolve().name, "project": project, "id": _unique_id(run), **params}
    return loggers.WandbLogger(save_dir=run, **settings)


def _mlflow(run: Path, **params: Any) -> Logger:
    store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run.resolve()}/mlflow.db"
    settings = {"experiment_name": PROJECT, "run_name": run.resolve().name, "tracking_uri": store}
    return loggers.MLFlowLogger(**{**settings, **params})


def _trackio(run: Path, **params: Any) -> Logger:
    settings = {"project": PROJECT, "run_name": f"{run.resolve().name}-{_unique_id(run)}", **params}
    return TrackioLogger(**settings)


KINDS: dict[str, Callable[..., Logger]] = {
    "csv": _csv,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}
#: The parameter under which a service continues a run.
ID_PARAMETER = {"wandb": "id", "mlflow": "run_id", "trackio": "run_name"}


def _unique_id(run: Path) -> str:
    """The same for a run wherever its folder is moved to, another for every other run."""
    return file_sha256(run / "run.json")[:8]


def check_logger(config: Config) -> None:
    """Refuse an unknown logger before anything is started."""

    def check(name: str, **params: Any) -> None:
        if name not in KINDS:
            raise ConfigError(f"unknown logger {name!r}; allowed: {', '.join(KINDS)}")

    if config.logger is not None:
        config.build("logger", check)


class Curves:
    """The loggers of a run, given every update and evaluation once.

    Args:
        loggers: Lightning loggers.
        reached: The last update they have of the updates' metrics and of each evaluation set.
        save: Told `reached` whenever it changes.
    """

    def __init__(
        self,
        loggers: Sequence[Logger] = (),
        reached: Mapping[str, int] | None = None,
        save: Callable[[Mapping[str, int]], None] = lambda reached: None,
    ):
        self.loggers = list(loggers)
        self._reached = dict(reached or {})
        self._save = save

    @classmethod
    def of_config(
        cls, config: Config, run: Path, others: Sequence[Logger] | None = None
    ) -> "Curves":
        """The configured logger of a run, brought up to what the run folder holds.

        Args:
            config: The job; without a `logger` there are no curves.
            run: The run's folder, its journals cut back to the newest checkpoint.
            others: Loggers to use instead, from here on.

        Raises:
            ConfigError: A setting that the logger does not take.
            DataError: `loggers.json` is damaged.
            ResourceError: Its package is not installed.
        """
        if others is not None or config.logger is None:
            return cls(others or ())
        name = config.logger.name
        is_service = _is_service(name, config.logger.params)
        states = _read_states(run) if is_service else {}
        state = states.get(name)
        if not is_service:
            _remove_files(run / name)
        known = {ID_PARAMETER[name]: state["id"]} if state else {}
        logger = config.build("logger", lambda name, **params: _load(name, run, params | known))
        if state is None or name != "mlflow":  # which refuses a value that has changed
            logger.log_hyperparams(dict(leaves(config.model_dump(mode="json"))))

        def save(reached: Mapping[str, int]) -> None:
            if is_service:
                states[name] = {"id": logger.version, "reached": dict(reached)}
                _write_states(run, states)

        curves = cls([logger], state and state["reached"], save)
        curves._catch_up(run)
        return curves

    def add_update(self, update: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of an update, unless they are there from before a crash."""
        self._add("updates", update, metrics)

    def add_evaluation(self, result: Evaluation) -> None:
        """Log mean@k and pass@k of a held-out set."""
        values = {  # MLflow takes no @
            f"evaluation/{result.name}/{metric.replace('@', '_at_')}": value["value"]
            for metric, value in result.summary().items()
            if isinstance(value, dict) and value["value"] is not None
        }
        self._add(f"evaluation/{result.name}", result.update, values)

    def __enter__(self) -> "Curves":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what is buffered, and end what a service keeps open for this process."""
        for logger in self.loggers:
            logger.finalize("failed" if kind else "success")
            if isinstance(logger, loggers.WandbLogger):
                logger.experiment.finish(exit_code=int(kind is not None))

    def _add(self, curve: str, update: int, values: Mapping[str, float]) -> None:
        if not self.loggers or update <= self._reached.get(curve, -1):
            return
        for logger in self.loggers:
            logger.log_metrics(dict(values), step=update)
        self._reached[curve] = update
        self._save(self._reached)

    def _catch_up(self, run: Path) -> None:
        for row in read_rows(run / "metrics.jsonl"):
            update = row.pop("update")
            self.add_update(update, {k: v for k, v in row.items() if v is not None})
        for result in read_evaluations(run):
            self.add_evaluation(result)


def _is_service(name: str, params: Mapping[str, Any]) -> bool:
    """Whether a logger's run is continued, not written anew."""
    if name != "wandb":
        return name in ID_PARAMETER
    mode = params.get("mode") or os.environ.get("WANDB_MODE")
    return not (params.get("offline") or mode in ("offline", "dryrun"))


def _load(name: str, run: Path, params: dict[str, Any]) -> Logger:
    try:
        return KINDS[name](run, **params)
    except ModuleNotFoundError as error:
        raise ResourceError(
            f"the logger {name!r} needs a package that is not installed: {error}",
            hint=f'pip install "offline-rlvr[{name}]"',
        ) from error
    except TypeError as error:
        raise ConfigError(f"the logger {name!r} does not take these settings: {error}") from error


@rank_zero_only
def _remove_files(folder: Path) -> None:
    """What an earlier start wrote; all of it is written again."""
    shutil.rmtree(folder, ignore_errors=True)


def _read_states(run: Path) -> dict[str, Any]:
    path = run / STATE_FILE
    if not path.exists():
        return {}
    try:
        if not path.is_file():  # reading a pipe would never end
            raise TypeError("it is not a file")
        states = json.loads(path.read_bytes())
        return {
            name: {
                "id": state["id"],
                "reached": {curve: int(update) for curve, update in state["reached"].items()},
            }
            for name, state in states.items()
        }
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged: {error}",
            hint="restore it from a copy, or remove it: the service is then given the whole run "
            "once more",
        ) from error


@rank_zero_only
def _write_states(run: Path, states: Mapping[str, Any]) -> None:
    write_file(run / STATE_FILE, (json.dumps(states, indent=1) + "\n").encode(), replace=True)
