"""Everything about a training that is decided, and refused, before a model is loaded."""

from dataclasses import dataclass
from pathlib import Path

from offline_rlvr import objectives, verifier
from offline_rlvr import problems as problem_sources
from offline_rlvr.config import Config
from offline_rlvr.errors import ConfigError, IncompatibleError
from offline_rlvr.evaluation.answers import check_engine
from offline_rlvr.generation.pretrained import fingerprint
from offline_rlvr.generation.sampling import LOGPROB_MODE, RESCORED, Sampling
from offline_rlvr.objectives.interface import Objective
from offline_rlvr.pool import Pool
from offline_rlvr.pool.build import sampling_of
from offline_rlvr.pool.selection import Filters, Selected, select
from offline_rlvr.stream import Plan, make_plan
from offline_rlvr.trainer.decisions import check_conditions
from offline_rlvr.trainer.loggers import check_logger
from offline_rlvr.trainer.ranks import Ranks, count_devices

#: Sampling settings of a pool that no config can ask for, and that are trained on with a warning.
KNOWINGLY = {("logprobs", RESCORED)}


@dataclass(frozen=True)
class Setup:
    """Everything that is decided before a model is loaded."""

    pool: Pool
    plan: Plan
    last: int
    selected: Selected
    objective: Objective
    sampling: Sampling
    ranks: Ranks  # this process as the first of all

    @property
    def warnings(self) -> list[str]:
        """What a person should know about the pool before training on it."""
        if self.pool.identity["sampling"].get("logprobs", LOGPROB_MODE) == LOGPROB_MODE:
            return []
        return [
            "warning: the pool's log-probs were scored after the fact by the model that is said to "
            "have sampled it; drift from the true behavior policy cannot be told from that"
        ]


def set_up(config: Config, pool_path: Path) -> Setup:
    """Open the pool, check that it belongs to this config, and make the plan.

    Raises:
        IncompatibleError: Another model, tokenizer, template or prompt than the pool was built
            with.
        ConfigError: An objective or setting that cannot be used.
    """
    objective = check_parts(config)
    if config.evaluation.problems is not None:
        config.build("evaluation.problems", problem_sources.load)
    size = count_devices(config.train.devices, config.model.device)
    ranks = Ranks(size=size, sharded=size > 1 and config.train.strategy == "fsdp2")
    if config.model.compile and ranks.sharded:
        raise ConfigError(
            "model.compile does not go with train.strategy fsdp2",
            hint="leave one of them out; ddp compiles",
        )
    pool = Pool.open(pool_path)
    sampling = sampling_of(config)
    _check_identity(config, pool, sampling)
    filters = Filters(**config.selection.model_dump())
    selected = select(pool, config.pool.probe_groups, filters)
    plan = make_plan(
        selected.training_ids.tolist(),
        pool_hash=pool.hash,
        seed=config.train.seed,
        groups_per_update=config.train.groups_per_update,
        drop_last=config.train.drop_last,
    )
    last = min(plan.updates, config.train.max_updates or plan.updates)
    return Setup(pool, plan, last, selected, objective, sampling, ranks)


def check_parts(config: Config) -> Objective:
    """What a config says of its parts, without pool, problems and model; the objective.

    Raises:
        ConfigError: A part or setting that cannot be used.
    """
    objective = config.build("objective", objectives.load)
    config.build("verifier", verifier.load)
    check_engine(config)
    check_logger(config)
    check_conditions(config)
    if config.train.keep_best and config.evaluation.problems is None:
        raise ConfigError(
            f"{config.where('train', 'keep_best')}: train.keep_best needs held-out problems",
            hint="set evaluation.problems, and evaluation.every: updates between evaluations",
        )
    return objective


def _check_identity(config: Config, pool: Pool, sampling: Sampling) -> None:
    """Refuse a pool that another model, template, prompt or sampling has built."""
    model, built = config.model, pool.identity["model"]
    mine = fingerprint(model.name_or_path, model.revision)
    theirs = built["fingerprint"]
    wrong = [part for part in theirs if theirs[part] != mine.get(part)]
    if pool.identity["prompt"] != config.prompt.model_dump():
        wrong.append("prompt settings")
    built_with = pool.identity["sampling"]
    wrong += [
        f"sampling.{key} ({built_with.get(key)} in the pool, {value} here)"
        for key, value in sampling.as_dict().items()
        if built_with.get(key) != value and (key, built_with.get(key)) not in KNOWINGLY
    ]
    if pool.group_size != config.pool.group_size:
        wrong.append(f"pool.group_size ({pool.group_size} in the pool)")
    if wrong:
        raise IncompatibleError(
            f"the pool was built by {built['name_or_path']!r}, and this config's "
            f"{model.name_or_path!r} differs in: {', '.join(wrong)}",
            hint="train the policy that built the pool, with the prompt it was built with",
        )
