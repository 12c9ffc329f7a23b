"""Log-probs of the untouched policy, scored once per pool and model and reused by later runs.

Every run's first anchor window is scored by the policy that built the pool; for a fixed reference
that window is the whole run. The table depends on nothing else than what `facts` names.
"""

from collections.abc import Callable
from typing import Any

from offline_rlvr.cache import Cache, cache_folder
from offline_rlvr.config import Config
from offline_rlvr.generation.pretrained import forward_facts
from offline_rlvr.generation.sampling import Sampling
from offline_rlvr.pool import Pool
from offline_rlvr.stream import Plan
from offline_rlvr.trainer.ranks import Ranks


def scoring_facts(
    config: Config,
    pool: Pool,
    plan: Plan,
    sampling: Sampling,
    token_budgets: tuple[int, int],
    ranks: Ranks,
) -> dict[str, Any]:
    """All that the initial policy's log-probs of the plan's minibatches depend on, to the bit."""
    return {
        "pool": pool.hash,
        "plan": plan.hash,
        "model": pool.identity["model"]["fingerprint"],
        "dtype": config.model.learner_dtype,
        "compile": config.model.compile,
        "lora": config.model.lora.model_dump() if config.model.lora else None,
        "seed": config.train.seed,
        "temperature": sampling.temperature,
        "micro_batch_tokens": token_budgets,
        "devices": ranks.size,
        "sharded": ranks.sharded,
        "precision": config.train.precision,
        **forward_facts(config.model.device),
    }


class InitialScores:
    """Tables of one run's untouched policy.

    Args:
        facts: Everything that a table depends on except its updates: pool, plan, model, precision,
            micro-batches, device, versions. JSON values.
        cache: Where tables are kept; None: the user's.
        ranks: The processes of the training; the first one reads and keeps.
    """

    def __init__(
        self, facts: dict[str, Any], cache: Cache | None = None, ranks: Ranks | None = None
    ):
        self.facts = facts
        self.cache = cache or Cache(
            cache_folder("initial-scores"), "log-probs of the initial policy"
        )
        self.ranks = ranks or Ranks()

    def get(self, updates: range, make: Callable[[], bytes]) -> bytes:
        """The safetensors bytes of a window that starts at update 1, from the cache or `make`.

        Args:
            updates: The window.
            make: Scores it, in all processes together.
        """
        facts = {**self.facts, "updates": [updates.start, updates.stop]}
        data = self.ranks.from_first(lambda: self.cache.get(facts))
        if data is None:
            data = make()
            if self.ranks.first:
                self.cache.keep(facts, data)
        return data
