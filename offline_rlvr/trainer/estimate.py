"""The arithmetic of a training before it starts: groups, updates, tokens, micro-batches, memory."""

from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from offline_rlvr.amounts import size
from offline_rlvr.config import Config
from offline_rlvr.generation.pretrained import folder_of, resolve_device
from offline_rlvr.policy import share_out
from offline_rlvr.policy.load import fresh_lora
from offline_rlvr.trainer.decisions import schedules_of
from offline_rlvr.trainer.memory import ModelShape, choose_pack_tokens, choose_token_budget
from offline_rlvr.trainer.setup import Setup, set_up
from offline_rlvr.trainer.space import disk_need
from offline_rlvr.trainer.watch import in_words


def estimate(config: Config, pool_path: Path) -> list[str]:
    """Plain lines about the training that this config describes; loads no weights.

    Raises:
        OfflineRlvrError: Whatever would stop the training before its first update.
    """
    setup = set_up(config, pool_path)
    plan, last = setup.plan, setup.last
    lengths = _lengths(setup)
    tokens = np.array(
        [sum(prompt + sum(responses) for prompt, responses in rows) for rows in lengths]
    )
    shape = _shape(config)
    device = resolve_device(config.model.device)
    budget = config.train.micro_batch_tokens or choose_token_budget(
        shape,
        device,
        config.model.gradient_checkpointing,
        loaded=False,
        sharing=setup.ranks.size if device.type == "cpu" else 1,
    )
    pack = min(budget, config.train.micro_batch_tokens or choose_pack_tokens(shape, device))
    pieces = [_micro_batches(rows, budget, pack, setup.ranks.size) for rows in lengths]
    lines = [
        f"pool          {setup.pool.path}, commit {setup.pool.commit}: {len(setup.pool)} groups of "
        f"{setup.pool.group_size}, {len(setup.selected.probe_ids)} in the probe",
        f"selection     {setup.selected}",
        f"plan          {last} of {plan.updates} updates of {plan.groups_per_update} groups, "
        f"hash {plan.hash[:12]}",
        f"objective     {setup.objective}",
        f"tokens        {tokens.sum():,} in all (prompts once), {tokens.mean():,.0f} per update, "
        f"at most {tokens.max():,}",
        f"micro-batches {np.mean(pieces):.1f} per update: groups share {pack:,} tokens, a longer "
        f"one has up to {budget:,}",
    ]
    if setup.ranks.size > 1:
        lines[-1] += f", on each of {setup.ranks.size} devices ({config.train.strategy})"
    for name, schedule in schedules_of(config, setup.objective).items():
        lines.append(f"{name:13} {schedule}")
    if config.train.stop_when is not None:
        lines.append(f"stop_when     {in_words(config.train.stop_when)}")
    lines.append(_memory(config, setup, shape, _longest_pass(lengths, budget, pack)))
    lines.append(f"disk          {disk_need(config, setup, shape.trained)}")
    return [*setup.warnings, *lines]


def _micro_batches(rows: list[tuple[int, list[int]]], budget: int, pack: int, ranks: int) -> int:
    """Of the first device."""
    prompts, responses = [prompt for prompt, _ in rows], [lengths for _, lengths in rows]
    return len(share_out(prompts, responses, budget, ranks, pack_tokens=pack)[0])


def _longest_pass(lengths: list[list[tuple[int, list[int]]]], budget: int, pack: int) -> int:
    """Tokens of the largest plain forward pass, at most."""
    groups = [prompt + sum(responses) for rows in lengths for prompt, responses in rows]
    longest_update = max(sum(p + sum(r) for p, r in rows) for rows in lengths)
    return min(budget, longest_update, max(pack, *groups))


def _lengths(setup: Setup) -> list[list[tuple[int, list[int]]]]:
    """For each update, (prompt, responses) lengths of its groups."""
    index = setup.pool.index
    row_of = {int(group_id): row for row, group_id in enumerate(index.group_ids)}
    updates = (setup.plan.groups(update) for update in range(1, setup.last + 1))
    return [
        [
            (int(index.prompt_lengths[row_of[g]]), index.response_lengths[row_of[g]].tolist())
            for g in groups
        ]
        for groups in updates
    ]


def _shape(config: Config) -> ModelShape:
    folder = folder_of(config.model.name_or_path, config.model.revision)
    with torch.device("meta"):
        facts = AutoConfig.from_pretrained(folder)
        model = AutoModelForCausalLM.from_config(facts)
        if config.model.lora is not None:
            model = fresh_lora(model, config.model.lora.model_dump(), str(folder))
    return ModelShape.of(model, facts)


def _memory(config: Config, setup: Setup, shape: ModelShape, tokens: int) -> str:
    parts = setup.ranks.size if setup.ranks.sharded else 1
    weights, states = 4 * shape.weights / parts, shape.state_bytes / parts
    activations = tokens * shape.bytes_per_token(config.model.gradient_checkpointing)
    total = weights + states + activations
    return (
        f"memory        about {size(total)}: weights {size(weights)}, their gradients and "
        f"Adam's moments {size(states)}, activations of one micro-batch {size(activations)} "
        "(float32)"
    )
