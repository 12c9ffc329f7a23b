"""An arm: the same update with the tricks up to one rung of the ladder, in plain code.

    python ladder_arm.py WORK_FOLDER RUNG

Every rung scores the same groups, takes the package's GRPO loss of them and makes an AdamW step;
only how log-probs are computed differs.
"""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from pace import Pace
from torch import Tensor
from workload import config_of, opened

from offline_rlvr import objectives
from offline_rlvr.batch import PoolBatch, TokenBatch
from offline_rlvr.policy import Policy
from offline_rlvr.policy.load import load_policy
from offline_rlvr.policy.logprobs import selected_logprobs
from offline_rlvr.stream.data import UpdateData
from offline_rlvr.trainer.run import set_up

#: Log-probs of a batch, [G, K, T]: from (policy, batch).
Score = Callable[[Policy, PoolBatch], Tensor]


def padded(policy: Policy, batch: PoolBatch, head: str) -> Tensor:
    """One row per response, its prompt before it, filled up to the longest."""
    g, k, t = batch.response_token_ids.shape
    p = batch.prompt_lengths.repeat_interleave(k)
    r = batch.response_lengths.flatten()
    offsets = torch.arange(int((p + r).max()), device=p.device)
    own = offsets - p[:, None]  # index of a response token
    prompts = batch.prompt_token_ids.repeat_interleave(k, 0)
    at_prompt = prompts.gather(1, offsets.clamp(max=prompts.shape[1] - 1).expand(len(p), -1))
    at_response = batch.response_token_ids.flatten(0, 1).gather(1, own.clamp(0, t - 1))
    tokens = torch.where(own < 0, at_prompt, at_response)
    hidden = policy.causal_lm.base_model(
        input_ids=tokens, attention_mask=own < r[:, None], use_cache=False
    ).last_hidden_state
    rows, steps = ((own >= 0) & (own < r[:, None])).nonzero(as_tuple=True)
    targets = tokens[rows, steps]
    if head == "all positions":
        logprobs = policy.causal_lm.get_output_embeddings()(hidden).float().log_softmax(-1)
        values = logprobs[rows, steps - 1, targets]
    elif head == "completions":
        logits = policy.causal_lm.get_output_embeddings()(hidden[rows, steps - 1])
        values = logits.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
    else:
        values, _ = selected_logprobs(hidden[rows, steps - 1], policy.head, targets)
    found = values.new_zeros(g * k, t)
    return found.index_put((rows, own[rows, steps]), values).view(g, k, t)


def packed(policy: Policy, batch: PoolBatch) -> Tensor:
    """The package's own scoring, with the attention that the policy was made with."""
    return policy.score(batch).logprobs


#: The rung whose layers are compiled.
COMPILED = "layers compiled"
#: Rung -> (how it scores, the policy's attention); each adds one trick to the one before.
RUNGS: dict[str, tuple[Score, str | None]] = {
    "padded": (partial(padded, head="all positions"), None),
    "head at completions only": (partial(padded, head="completions"), None),
    "head in tiles, gradient by hand": (partial(padded, head="tiles"), None),
    "prompt once, dense mask": (packed, "dense"),
    "prompt once, own attention": (packed, None),
    COMPILED: (packed, None),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rung", choices=RUNGS)
    asked = parser.parse_args()
    pace = Pace()
    work, updates = opened(asked.folder)
    config = config_of(asked.folder, work, updates)
    setup = set_up(config, asked.folder / "pool")
    score, attention = RUNGS[asked.rung]
    policy = load_policy(
        config.model.name_or_path,
        device=work.device,
        attention=attention,
        compile=work.compile and asked.rung == COMPILED,
    )
    objective = objectives.load("grpo", kl_coef=0.0)
    parameters = list(policy.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=config.train.learning_rate, weight_decay=0.0)
    mixed = work.precision == "bf16-mixed"
    for _, batch in (UpdateData(setup.pool, setup.plan)[i] for i in range(updates)):
        batch = batch.to(work.device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(work.device, torch.bfloat16, enabled=mixed):
            logprobs = score(policy, batch)
        tokens = TokenBatch(logprobs, batch.behavior_logprobs, batch.rewards, batch.response_mask)
        objective(tokens, batch.totals).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, config.train.grad_clip)
        optimizer.step()
        facts = {}
        if work.device == "cuda":
            torch.cuda.synchronize()
            facts["cuda"] = torch.cuda.max_memory_allocated()
        update = pace.stop()
        off = (logprobs.detach() - batch.behavior_logprobs)[batch.response_mask].abs().max()
        pace.wait(update, logprob_diff=float(off), **facts)


if __name__ == "__main__":
    main()
