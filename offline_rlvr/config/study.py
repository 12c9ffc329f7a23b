"""A study file: methods x seeds on one pool.

base: ../../quickstart.yaml          the job that all methods share
pool: pools/quickstart               built from the job where it is not there yet
seeds: [0, 1, 2]                     order of the groups, and sampling of the evaluation
job:                                 changes for all methods
  train: {max_updates: 60}
methods:                             changes of each
  ggpo: {objective: {name: ggpo, beta: 1.0}}
  grpo: {objective: {name: grpo}}
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from offline_rlvr.config.loader import Config, Key, checked, merge, parse_yaml, read_with_base
from offline_rlvr.config.section import Section
from offline_rlvr.errors import ConfigError

#: Names become folders.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*")


class _File(Section):
    base: str
    pool: str
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    job: dict[str, Any] = Field(default_factory=dict)
    methods: Annotated[dict[str, dict[str, Any] | None], Field(min_length=1)]


@dataclass(frozen=True)
class Study:
    """A checked study.

    Attributes:
        name: Of its folder.
        pool: The pool's folder, as written.
        pool_job: What the pool is built from where it is missing: the base with `job`.
        seeds: Distinct.
        jobs: By method and seed, in the order in which they are run: every method of a seed before
            the next seed.
    """

    name: str
    pool: Path
    pool_job: Config
    seeds: list[int]
    jobs: dict[tuple[str, int], Config]

    @property
    def methods(self) -> list[str]:
        """Names, in the order of the file."""
        return list(dict.fromkeys(method for method, _ in self.jobs))


def load_study(path: Path) -> Study:
    """Read and check a study file and the config of each of its runs.

    Raises:
        ConfigError: With file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the study {path}: {error}", hint="see configs/studies/ for examples"
        ) from error
    values, where = parse_yaml(text, str(path))
    try:
        file = _File.model_validate(values)
    except ValidationError as error:
        raise ConfigError(
            "\n".join(
                f"{path}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}"
                for problem in error.errors()
            ),
            hint="a study has the keys base, pool, seeds, job and methods",
        ) from None
    wrong = [name for name in file.methods if not NAME.fullmatch(name)]
    if wrong:
        raise ConfigError(
            f"{where[('methods', wrong[0])]}: the method {wrong[0]!r} becomes a folder",
            hint="use letters, digits and . _ = -",
        )
    for who in (("job",), *(("methods", method) for method in file.methods)):
        for section in ("train", "evaluation"):
            place = where.get((*who, section, "seed"))
            if place:
                raise ConfigError(
                    f"{place}: a {who[0].removesuffix('s')} may not set {section}.seed",
                    hint="`seeds` are the same for all methods",
                )
    if len(set(file.seeds)) < len(file.seeds):
        raise ConfigError(f"{where[('seeds',)]}: a seed is written twice")
    below, below_where = read_with_base(path.parent / file.base)
    shared, places = merge(below, file.job), below_where | _under(where, "job")
    jobs: dict[tuple[str, int], Config] = {}
    for seed in file.seeds:
        seeds = {"train": {"seed": seed}, "evaluation": {"seed": seed}}
        for method, changes in file.methods.items():
            layer = merge(changes or {}, seeds)
            jobs[method, seed] = checked(
                merge(shared, layer), places | _under(where, "methods", method)
            )
    return Study(
        path.resolve().parent.name, Path(file.pool), checked(shared, places), file.seeds, jobs
    )


def _under(where: dict[Key, str], *prefix: str) -> dict[Key, str]:
    """Places of the keys below a prefix, without it."""
    depth = len(prefix)
    return {key[depth:]: place for key, place in where.items() if key[:depth] == prefix}
