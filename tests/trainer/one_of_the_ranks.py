"""One process of several that share an update; run by test_ranks.py, also alone.

Arguments: rank, number of processes, pool, folder. Writes what it got to `RANK-of-SIZE.pt`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from offline_rlvr import objectives
from offline_rlvr.errors import OfflineRlvrError, QualityGateError
from offline_rlvr.policy.load import load_policy
from offline_rlvr.pool import Pool
from offline_rlvr.pool.selection import select
from offline_rlvr.stream.data import collate
from offline_rlvr.trainer import sharding
from offline_rlvr.trainer.accumulate import Accumulator
from offline_rlvr.trainer.phases import Phases
from offline_rlvr.trainer.ranks import Ranks, join

LORA = {"rank": 4}
#: name: (objective, its settings, groups, tokens per forward pass, LoRA)
UPDATES = {
    "coupled": ("ggpo", {"beta": 1.0}, 7, 150, None),
    "token-wise": ("grpo", {}, 7, 150, None),
    "token-wise with a reference": ("proximal_kl", {}, 7, 150, None),
    "adapter": ("ggpo", {"beta": 1.0}, 7, 150, LORA),
    "fewer groups than processes": ("ggpo", {"beta": 1.0}, 1, 150, None),
    "groups in pieces": ("ggpo", {"beta": 1.0}, 3, 12, None),
}


def update(ranks, groups, name, settings, count, budget, lora):
    """Loss, gradients, metrics, response rows and anchor of an update."""
    torch.manual_seed(0)  # of a fresh adapter
    policy = load_policy("builtin", device="cpu", lora=lora)
    with torch.no_grad():  # away from the behavior policy, so that every ratio counts
        for number, parameter in enumerate(policy.parameters()):
            generator = torch.Generator().manual_seed(number)
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    if ranks.sharded:
        sharding.shard(policy)
    groups = groups.select(list(range(count)))
    objective = objectives.load(name, **settings)
    accumulator = Accumulator(policy, objective, budget, Phases(policy.device), ranks)
    anchors = dict.fromkeys(objective.anchors, groups.behavior_logprobs)
    scored = accumulator.score(groups)
    done = accumulator.add_gradients(1, groups, groups.totals, anchors, entropy=True)
    trained = [p for p in policy.parameters() if p.requires_grad]
    return {
        "loss": float(done.loss),
        "gradient": torch.cat([sharding.whole(p.grad).flatten() for p in trained]),
        "metrics": done.diagnostics.result(),
        "rows": {int(g): r["s"][i] for ids, r in done.records for i, g in enumerate(ids)},
        "scored": scored,
        "micro_batches": len(accumulator.plan(groups)),
    }


def refused(ranks, work):
    """Kind and text of the error that a process gets from work that is done together."""
    try:
        return ranks.together(work)
    except (MemoryError, RuntimeError, OfflineRlvrError) as error:
        return type(error).__name__, str(error)


def agreements(ranks):
    def too_much():
        return torch.empty(1 << 50)  # refused by the allocator

    def unfit():
        raise QualityGateError("not finite", hint="look at it")

    def of(first, second):
        return refused(ranks, second if ranks.rank else first)

    return {
        "memory": of(lambda: 0, too_much),
        "refusal": of(lambda: 0, unfit),
        "both": of(too_much, unfit),
        "none": of(lambda: 0, lambda: 10),
    }


def apart(ranks):
    """The same failure in every process, while none may wait for another one."""
    own = f"of process {ranks.rank}"

    def unfit():
        raise QualityGateError(own)

    def broken():
        raise RuntimeError(own)

    return [refused(ranks, work) for work in (unfit, broken, lambda: torch.empty(1 << 50))]


def main(rank, size, pool, folder):
    torch.set_num_threads(1)
    ranks = Ranks(rank, size)
    if size > 1:
        store = dist.FileStore(str(folder / "store"), size)
        join(ranks, store, torch.device("cpu"))
    opened = Pool.open(pool)
    groups = collate(opened.read(select(opened, 0).training_ids[:7]))
    found = {name: update(ranks, groups, *case) for name, case in UPDATES.items()}
    if size > 1:
        found["agreements"] = agreements(ranks)
        sharded = Ranks(rank, size, sharded=True)
        found["sharded"] = {n: update(sharded, groups, *case) for n, case in UPDATES.items()}
        found["apart"] = apart(sharded)
    torch.save(found, folder / f"{rank}-of-{size}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
