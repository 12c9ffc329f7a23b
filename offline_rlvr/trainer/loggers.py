"""Lightning loggers by config name; `metrics.jsonl` is written whatever is chosen."""

from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers import Logger

from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError, ResourceError

KINDS: dict[str, str] = {
    "csv": "CSVLogger",
    "tensorboard": "TensorBoardLogger",
    "wandb": "WandbLogger",
    "mlflow": "MLFlowLogger",
}


def load_loggers(config: Config, run: Path) -> list[Logger]:
    """The configured logger, as a list of none or one.

    Raises:
        ConfigError: An unknown name or a setting that the logger does not take.
        ResourceError: Its package is not installed.
    """
    if config.logger is None:
        return []

    def load(name: str, **params: Any) -> Logger:
        if name not in KINDS:
            raise ConfigError(f"unknown logger {name!r}; allowed: {', '.join(KINDS)}")
        place = {} if name == "mlflow" else {"save_dir": str(run)}
        try:
            return getattr(loggers, KINDS[name])(**{**place, **params})
        except ModuleNotFoundError as error:
            raise ResourceError(
                f"the logger {name!r} needs a package that is not installed: {error}",
                hint=f'pip install "offline-rlvr[{name}]"',
            ) from error
        except TypeError as error:
            raise ConfigError(
                f"the logger {name!r} does not take these settings: {error}"
            ) from error

    return [config.build("logger", load)]
