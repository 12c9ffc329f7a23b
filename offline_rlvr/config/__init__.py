"""Configuration: pydantic models (`schema`) and the YAML loader with file:line and did-you-mean (`loader`)."""

from offline_rlvr.config.loader import Config, load_config

__all__ = ["Config", "load_config"]
