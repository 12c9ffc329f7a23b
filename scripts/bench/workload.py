"""What the training benchmarks train: a model with random weights and a pool of random tokens.

A work folder holds

    model/          the model, with the built-in tokenizer
    pool/           written by the package's own writer; its log-probs are the model's own
    order.json      the group ids of every update, in plan order
    workload.json   what all that was made from
"""

import argparse
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from offline_rlvr.config import Config
from offline_rlvr.generation.pretrained import load_tokenizer
from offline_rlvr.policy.load import load_policy
from offline_rlvr.pool import GroupArrays, PoolWriter
from offline_rlvr.pool.build import identity_of, sampling_of
from offline_rlvr.pool.build.draw import Draws
from offline_rlvr.records import Group, Problem, Response, Verdict
from offline_rlvr.trainer.rescore import rescore
from offline_rlvr.trainer.run import set_up

ARCHITECTURES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
#: Ids below are special tokens of the tokenizer.
FIRST_TOKEN = 8


@dataclass(frozen=True)
class Workload:
    """Sizes. By default SmolLM2-135M and what two CPU cores train in seconds.

    Attributes:
        groups: Of an update.
        responses: Of a group.
        shortest: Response tokens, drawn evenly up to `longest`.
        control_prompt, control_response: Lengths of the control case, where sharing cannot help.
        precision: Of the timed updates; gates always compare in float32.
        compile: Our layers, see `model.compile`.
    """

    architecture: str = "llama"
    layers: int = 30
    hidden: int = 576
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    intermediate: int = 1536
    vocabulary: int = 49152
    groups: int = 2
    responses: int = 8
    prompt: int = 64
    shortest: int = 16
    longest: int = 96
    control_prompt: int = 16
    control_response: int = 256
    device: str = "cpu"
    precision: str = "32-true"
    compile: bool = True

    @property
    def response_range(self) -> str:
        """For a table."""
        return (
            f"{self.groups} x {self.responses}, P {self.prompt}, R {self.shortest}-{self.longest}"
        )


PRESETS = {
    "cpu": Workload(),
    # Qwen3-0.6B.
    "cuda": Workload(
        "qwen3", 28, 1024, 16, 8, 128, 3072, 151936, 8, 8, 256, 128, 1024, 64, 1024, "cuda",
        "bf16-mixed",
    ),
    "tiny": Workload("llama", 2, 32, 4, 2, 8, 64, 256, 2, 4, 8, 2, 12, 2, 16, compile=False),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--preset` and one option for every size, which wins over the preset."""
    parser.add_argument("--preset", choices=PRESETS, default="cpu")
    for field in fields(Workload):
        option = f"--{field.name.replace('_', '-')}"
        kind: dict[str, Any] = {"type": type(field.default)}
        if kind["type"] is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(option, default=None, help=argparse.SUPPRESS, **kind)


def chosen(options: argparse.Namespace) -> Workload:
    """The workload that the options describe."""
    given = {f.name: getattr(options, f.name) for f in fields(Workload)}
    sizes = {name: value for name, value in given.items() if value is not None}
    return Workload(**{**asdict(PRESETS[options.preset]), **sizes})


def config_of(folder: Path, work: Workload, updates: int, kl_coef: float = 0.0) -> Config:
    """The job: GRPO with the package's defaults, on this model and pool, and no extra scoring."""
    return Config.model_validate(
        {
            "model": {
                "name_or_path": str(folder / "model"),
                "device": work.device,
                "compile": work.compile,
            },
            "pool": {"group_size": work.responses, "probe_groups": 0},
            "objective": {"name": "grpo", "kl_coef": kl_coef},
            "train": {
                "groups_per_update": work.groups,
                "max_updates": updates,
                "precision": work.precision,
                "checkpoint_every": updates,
            },
        }
    )


def prepare(folder: Path, work: Workload, updates: int) -> None:
    """Fill a work folder with what so many updates need."""
    folder.mkdir(parents=True)
    _write_model(folder / "model", work)
    config = config_of(folder, work, updates)
    identity = identity_of(config, sampling_of(config), Draws([], [], {}))
    policy = load_policy(folder / "model", device=work.device).eval()
    draw = random.Random(0)
    with PoolWriter.create_or_open(folder / "pool", identity) as writer:
        for update in range(updates):
            groups = list(_groups(draw, work, update * work.groups))
            scored = rescore(policy, groups)
            writer.append([_stored(*pair) for pair in zip(groups, scored, strict=True)], "bench")
    plan = set_up(config, folder / "pool").plan
    order = [plan.groups(update) for update in range(1, updates + 1)]
    (folder / "order.json").write_text(json.dumps([[int(i) for i in ids] for ids in order]))
    (folder / "workload.json").write_text(json.dumps({**asdict(work), "updates": updates}))


def opened(folder: Path) -> tuple[Workload, int]:
    """The workload of a work folder, and its number of updates."""
    sizes = json.loads((folder / "workload.json").read_text())
    updates = sizes.pop("updates")
    return Workload(**sizes), updates


def _write_model(folder: Path, work: Workload) -> None:
    kind, model = ARCHITECTURES[work.architecture]
    torch.manual_seed(0)
    model(
        kind(
            num_hidden_layers=work.layers,
            hidden_size=work.hidden,
            num_attention_heads=work.heads,
            num_key_value_heads=work.kv_heads,
            head_dim=work.head_dim,
            intermediate_size=work.intermediate,
            vocab_size=work.vocabulary,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
    load_tokenizer("builtin").save_pretrained(folder)


def _groups(draw: random.Random, work: Workload, first: int) -> Iterator[GroupArrays]:
    """The groups of one update, without log-probs; every other response is right."""

    def tokens(count: int) -> np.ndarray:
        return np.array([draw.randrange(FIRST_TOKEN, work.vocabulary) for _ in range(count)])

    for group_id in range(first, first + work.groups):
        lengths = [draw.randint(work.shortest, work.longest) for _ in range(work.responses)]
        yield GroupArrays(
            group_id=group_id,
            problem_id=str(group_id),
            question="random tokens",
            answer="0",
            prompt_token_ids=tokens(work.prompt),
            response_token_ids=[tokens(length) for length in lengths],
            behavior_logprobs=[np.zeros(length, np.float32) for length in lengths],
            rewards=np.arange(work.responses) % 2.0,
            statuses=["no_answer"] * work.responses,
            texts=[""] * work.responses,
            finish_reasons=["length"] * work.responses,
            seeds=[None] * work.responses,
        )


def _stored(group: GroupArrays, logprobs: list[np.ndarray]) -> Group:
    responses = tuple(
        Response(tuple(ids.tolist()), tuple(values.tolist()), "", "length")
        for ids, values in zip(group.response_token_ids, logprobs, strict=True)
    )
    return Group(
        group.group_id,
        Problem(group.problem_id, group.question, group.answer),
        tuple(group.prompt_token_ids.tolist()),
        responses,
        tuple(Verdict("correct" if right else "incorrect") for right in group.rewards),
    )
