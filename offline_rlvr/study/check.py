"""What is wrong with a study and shows before anything is sampled or trained."""

from offline_rlvr.config.study import Study
from offline_rlvr.dotted import leaves
from offline_rlvr.errors import ConfigError
from offline_rlvr.trainer.roles import MEASURE, NO_NUMBER, PLAN, POOL, SEEDS
from offline_rlvr.trainer.setup import check_parts

#: With others, runs of a study would have another pool, plan, length or measure.
SHARED = (*POOL, *PLAN, *MEASURE, "model.dtype", "train.max_updates")


def check_study(study: Study) -> None:
    """Build the parts of every method's job, and see that methods can be compared.

    Raises:
        ConfigError: A part that cannot be used, a setting that methods must share, or two methods
            that are the same.
    """
    seed = study.seeds[0]
    shared = dict(leaves(study.pool_job.model_dump(mode="json")))
    known: dict[str, str] = {}
    for method in study.methods:
        config = study.jobs[method, seed]
        check_parts(config)
        given = dict(leaves(config.model_dump(mode="json")))
        for key in sorted(given.keys() | shared.keys()):
            common = key.startswith(SHARED) and not key.startswith((*SEEDS, *NO_NUMBER))
            if common and given.get(key) != shared.get(key):
                raise ConfigError(
                    f"{config.where(*key.split('.'))}: the method {method!r} has a {key} of its "
                    f"own, {given.get(key)!r} for {shared.get(key)!r}, and could not be compared",
                    hint="set it under `job`, for all methods",
                )
        other = known.setdefault(config.to_yaml(), method)
        if other != method:
            raise ConfigError(f"the methods {other!r} and {method!r} are the same")
