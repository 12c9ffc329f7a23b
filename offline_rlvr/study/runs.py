"""The runs of a study on disk: `OUTPUT/METHOD-SEED`, each with its job beside it."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from offline_rlvr.config import Config
from offline_rlvr.config.study import Study
from offline_rlvr.errors import ConfigError, DataError
from offline_rlvr.problems import set_names
from offline_rlvr.trainer.folder import RunFolder
from offline_rlvr.trainer.status import RunStatus


@dataclass(frozen=True)
class StudyRun:
    """One method with one seed.

    Attributes:
        method: Its name in the study.
        seed: Order of the groups and sampling of the evaluation.
        config: The whole job.
        folder: The run's folder.
    """

    method: str
    seed: int
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        """Of the run."""
        return self.folder.name

    @property
    def job(self) -> Path:
        """Where its config lies, for `offline-rlvr train`."""
        return self.folder.parent / "jobs" / f"{self.name}.yaml"

    @property
    def status(self) -> RunStatus | None:
        """Where it stands; None before its first start."""
        return RunStatus.of(self.folder) if (self.folder / "run.json").is_file() else None

    @property
    def finished(self) -> bool:
        """Trained to the end and evaluated there on every held-out set that is asked for."""
        status = self.status
        if status is None or status.state != "complete":
            return False
        trained = status.config.train
        if (trained.max_updates, trained.stop_when) != (
            self.config.train.max_updates,
            self.config.train.stop_when,
        ):
            return False  # there may be more to do
        if self.config.evaluation.problems is None:
            return True
        sets = self.config.build("evaluation.problems", set_names)
        evaluated = {name for update, name, _ in status.accuracy if update == status.saved}
        return evaluated >= set(sets)

    def refuse_changed(self) -> None:
        """Refuse a run that was begun with other settings than the study now has for it.

        Raises:
            ConfigError: Names them.
        """
        if not (self.folder / "run.json").is_file():
            return
        differing = RunFolder.open(self.folder).differences(self.config)
        if differing:
            raise ConfigError(
                f"{self.folder} was started with other settings than the study has now:\n  "
                + "\n  ".join(differing),
                hint="give the changed study another --output, or remove the run: "
                f"rm -r {shlex.quote(str(self.folder))}",
            )


def study_runs(study: Study, output: Path) -> list[StudyRun]:
    """Every run of a study in its order.

    Raises:
        DataError: The output folder holds something else.
    """
    runs = [
        StudyRun(method, seed, config, output / f"{method}-{seed}")
        for (method, seed), config in study.jobs.items()
    ]
    known = {run.name for run in runs} | {"jobs", "logs", "compare", "pilot"}
    found = {entry.name for entry in output.iterdir()} if output.is_dir() else set()
    strangers = sorted(name for name in found - known if not name.startswith("."))
    if strangers:
        raise DataError(
            f"{output} holds what is not of this study: {', '.join(strangers[:3])}",
            hint="choose another --output",
        )
    return runs
