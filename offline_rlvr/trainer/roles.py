"""What each setting of a job decides: the pool, the plan, the measure, the method, or no number.

A setting that is named nowhere here is the method's. Names end in a dot where they hold a whole
section.
"""

SEED = "train.seed"
#: Differ between the runs of one method.
SEEDS = {SEED, "evaluation.seed"}
#: What a policy is asked and how it is judged: the same for all, whatever the method.
MEASURE = ("evaluation.", "prompt.", "sampling.", "verifier.")
#: What makes the pool, beside the measure; its hash vouches for them.
POOL = ("pool.", "problems.", "generation.", "model.name_or_path", "model.revision")
#: Which groups of the pool make which update.
PLAN = ("selection.", "train.groups_per_update", "train.drop_last", "pool.probe_groups")
#: What changes no number.
NO_NUMBER = (
    "model.gradient_checkpointing",
    "model.compile",
    "train.devices",
    "train.strategy",
    "train.log_entropy_every",
    "train.probe_every",
    "train.micro_batch_tokens",
    "train.max_noise_floor",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "evaluation.every",
)
