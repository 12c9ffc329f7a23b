"""An arm: TRL's GRPOTrainer on the responses of a pool, which it believes to have sampled.

    .venv-trl/bin/python trl_peer.py WORK_FOLDER CHECKPOINTING(0|1) PER_DEVICE_BATCH [--dump FILE]

Runs in TRL's own virtual environment and reads the pool's Parquet files as anybody would. The loss
is `dapo` with beta 0: GRPO's clipped surrogate, averaged over the tokens of the whole update as the
package's `grpo` does it.
"""

import argparse
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}

import pyarrow.parquet as pq
import torch
from datasets import Dataset
from pace import Pace
from safetensors.torch import save_file
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

#: A rank per device is started by a launcher; this arm is one process on one device.
LEARNING_RATE, GRAD_CLIP = 1e-6, 1.0


def read_pool(folder: Path) -> dict[str, dict[str, Any]]:
    """Group id, as text -> ids, log-probs and rewards."""
    groups = {}
    for kind in ("samples", "grades/*"):
        for file in sorted(folder.glob(f"{kind}/*.parquet")):
            for row in pq.read_table(file).to_pylist():
                groups.setdefault(str(row["group_id"]), {}).update(row)
    return groups


class Paced(TrainerCallback):
    """Reports every update and waits for the next; keeps the first update's gradient."""

    def __init__(self, pace: Pace, dump: Path | None):
        self.pace = pace
        self.dump = dump

    def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
        if self.dump:
            grads = {name: p.grad for name, p in model.named_parameters()}
            save_file({n: g.float().contiguous() for n, g in grads.items()}, self.dump)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        facts = {"threads": torch.get_num_threads()}
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        update = self.pace.stop()
        if torch.cuda.is_available():
            facts["cuda"] = torch.cuda.max_memory_allocated()
        self.pace.wait(update, **facts)


class Recorded(GRPOTrainer):
    """Keeps the log-probs of every response that it scores."""

    def __init__(self, *args: Any, dump: Path | None, **kwargs: Any):
        self.dump = dump
        self.rows: list[Any] = []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.inputs = inputs
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if self.dump:
            ids, mask = self.inputs["completion_ids"], self.inputs["completion_mask"]
            for i, length in enumerate(mask.sum(-1).tolist()):
                self.rows.append([ids[i, :length].tolist(), found[0][i, :length].tolist()])
            self.dump.with_suffix(".json").write_text(json.dumps(self.rows))
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("checkpointing", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("--dump", type=Path)
    asked = parser.parse_args()
    pace = Pace()
    work = json.loads((asked.folder / "workload.json").read_text())
    pool = read_pool(asked.folder / "pool")
    order = [str(i) for ids in json.loads((asked.folder / "order.json").read_text()) for i in ids]
    on_cuda, exact = work["device"] == "cuda", asked.dump is not None
    sequences = work["groups"] * work["responses"]

    def rollout(prompts: list[str], _trainer: Any) -> dict[str, list[Any]]:
        seen: Counter[str] = Counter()
        keys = ("prompt_ids", "completion_ids", "logprobs", "stored_reward")
        out: dict[str, list[Any]] = {key: [] for key in keys}
        for key in prompts:
            group, k = pool[key], seen[key]
            seen[key] += 1
            out["prompt_ids"].append(group["prompt_token_ids"])
            out["completion_ids"].append(group["response_token_ids"][k])
            out["logprobs"].append(group["behavior_logprobs"][k])
            out["stored_reward"].append(group["rewards"][k])
        return out

    def reward(prompts: Any, completions: Any, stored_reward: list[float], **_: Any) -> list[float]:
        return stored_reward

    with tempfile.TemporaryDirectory(dir=asked.folder) as output:
        trainer = Recorded(
            model=str(asked.folder / "model"),
            dump=asked.dump,
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=output,
                use_cpu=not on_cuda,
                bf16=work["precision"] == "bf16-mixed" and not exact,
                model_init_kwargs={"dtype": "float32"},
                report_to="none",
                seed=0,
                num_generations=work["responses"],
                per_device_train_batch_size=asked.batch,
                gradient_accumulation_steps=sequences // asked.batch,
                num_iterations=1,
                max_steps=work["updates"],
                shuffle_dataset=False,
                use_vllm=False,
                temperature=1.0,
                max_completion_length=max(
                    len(i) for g in pool.values() for i in g["response_token_ids"]
                ),
                loss_type="dapo",
                epsilon=0.2,
                beta=0.0,
                gradient_checkpointing=bool(asked.checkpointing),
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                weight_decay=0.0,
                max_grad_norm=0.0 if exact else GRAD_CLIP,
                save_strategy="no",
                logging_steps=1,
                remove_unused_columns=False,
                dataloader_num_workers=0,
            ),
            processing_class=AutoTokenizer.from_pretrained(asked.folder / "model"),
            train_dataset=Dataset.from_dict({"prompt": order}),
            rollout_func=rollout,
        )
        trainer.add_callback(Paced(pace, asked.dump))
        trainer.train()


if __name__ == "__main__":
    main()
