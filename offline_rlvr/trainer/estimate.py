"""The arithmetic of a training before it starts: groups, updates, tokens, micro-batches, memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from offline_rlvr.config import Config
from offline_rlvr.generation.pretrained import folder_of
from offline_rlvr.policy import micro_batches
from offline_rlvr.trainer.run import Setup, set_up
from offline_rlvr.trainer.space import MOMENTS, disk_need

GIB = 1 << 30
#: Bytes per trained float32 weight: itself, its gradient, Adam's two moments.
BYTES_PER_TRAINED_WEIGHT = 16
#: Saved hidden-sized tensors per layer and token (norms, projections, residuals), beside the three
#: of the MLP.
HIDDEN_TENSORS_PER_LAYER = 10


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
    budget = config.train.micro_batch_tokens
    pieces = [
        len(micro_batches([p for p, _ in rows], [r for _, r in rows], budget)) for rows in lengths
    ]
    lines = [
        f"pool          {setup.pool.path}, commit {setup.pool.commit}: {len(setup.pool)} groups of "
        f"{setup.pool.group_size}, {len(setup.selected.probe_ids)} in the probe",
        f"selection     {setup.selected}",
        f"plan          {last} of {plan.updates} updates of {plan.groups_per_update} groups, "
        f"hash {plan.hash[:12]}",
        f"objective     {setup.objective}",
        f"tokens        {tokens.sum():,} in all (prompts once), {tokens.mean():,.0f} per update, "
        f"at most {tokens.max():,}",
        f"micro-batches {np.mean(pieces):.1f} per update of at most {budget:,} tokens",
    ]
    for name in sorted(setup.objective.anchors):
        window = getattr(config, name).refresh_every
        lines.append(
            f"{name:13} {'fixed' if window is None else f'refreshed every {window} updates'}"
        )
    memory, weights = _memory(config, min(budget, int(tokens.max())))
    lines.append(memory)
    if config.model.lora is None:  # an adapter's size is known once it is made
        width = 4 if config.model.dtype == "float32" else 2
        sizes = (weights * width, MOMENTS * weights * width)
        need = disk_need(config, setup.objective, setup.pool, plan, last, sizes)
        lines.append(f"disk          {need}")
    return [*setup.warnings, *lines]


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


def _memory(config: Config, tokens: int) -> tuple[str, int]:
    """A line about memory, and the number of weights."""
    folder = folder_of(config.model.name_or_path, config.model.revision)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    facts: dict[str, Any] = json.loads((folder / "config.json").read_text())
    weights = sum(parameter.numel() for parameter in model.parameters())
    layers, hidden = facts["num_hidden_layers"], facts["hidden_size"]
    inner = facts.get("intermediate_size") or 4 * hidden
    per_layer = (
        hidden
        if config.model.gradient_checkpointing
        else HIDDEN_TENSORS_PER_LAYER * hidden + 3 * inner
    )
    states = weights * (BYTES_PER_TRAINED_WEIGHT if config.model.lora is None else 4)
    activations = 4 * tokens * layers * per_layer
    what = "weights, gradients, optimizer" if config.model.lora is None else "weights (LoRA)"
    line = (
        f"memory        about {(states + activations) / GIB:.2f} GiB: {what} {states / GIB:.2f}, "
        f"activations of one micro-batch {activations / GIB:.2f} (float32)"
    )
    return line, weights
