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


def check_logger(config: Config) -> None:
    """Refuse an unknown logger before anything is started."""

    def check(name: str, **params: Any) -> None:
        if name not in KINDS:
            raise ConfigError(f"unknown logger {name!r}; allowed: {', '.join(KINDS)}")

    if config.logger is not None:
        config.build("logger", check)


def load_loggers(config: Config, run: Path) -> list[Logger]:
    """The configured logger, as a list of none or one.

    Raises:
        ConfigError: A setting that the logger does not take.
        ResourceError: Its package is not installed.
    """
    if config.logger is None:
        return []

    def load(name: str, **params: Any) -> Logger:
        place = {} if name == "mlflow" else {"save_dir": str(run)}
        try:
            return getattr(loggers, KINDS[name])(**{**place, **params})
        except ModuleNotFoundError as error:
            raise ResourceError(
                f"the logger {name!r} needs a package that is not installed: {error}",
                hint=f"pip install {name}",
            ) from error
        except TypeError as error:
            raise ConfigError(
                f"the logger {name!r} does not take these settings: {error}"
            ) from error

    return [config.build("logger", load)]
