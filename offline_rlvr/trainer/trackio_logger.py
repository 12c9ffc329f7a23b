"""A Lightning logger for trackio, which Lightning has none for."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import Logger


class TrackioLogger(Logger):
    """Logs to a trackio run, by default into the local store that `trackio show` reads.

    Args:
        project: The project.
        run_name: The run; one of this name is continued.
        settings: Further arguments of `trackio.init`, e.g. `space_id`.

    Raises:
        ModuleNotFoundError: trackio is not installed.
    """

    def __init__(self, project: str, run_name: str, **settings: Any):
        super().__init__()
        import trackio  # pyright: ignore[reportMissingImports]

        self._trackio = trackio
        self._arguments = {"project": project, "name": run_name, "resume": "allow", **settings}
        self._run: Any = None

    @property
    def name(self) -> str:
        """The project."""
        return self._arguments["project"]

    @property
    def version(self) -> str:
        """The run's name."""
        return self._arguments["name"]

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The trackio run, started at its first use."""
        if self._run is None:
            self._run = self._trackio.init(**self._arguments)
        return self._run

    @rank_zero_only
    def log_hyperparams(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, params: dict[str, Any] | Namespace
    ) -> None:
        """Kept for the start of the run: trackio takes its configuration only there."""
        self._arguments["config"] = dict(params if isinstance(params, dict) else vars(params))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log values of one step."""
        self.experiment.log(dict(metrics), step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Send what is queued, and end the run; logging again continues it."""
        if self._run is not None:
            self._trackio.finish()
            self._run = None
