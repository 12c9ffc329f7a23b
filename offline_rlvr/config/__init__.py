"""Configuration: pydantic models (`schema`), YAML with file:line and did-you-mean (`loader`)."""

from offline_rlvr.config.loader import Config, load_config

__all__ = ["Config", "load_config"]
