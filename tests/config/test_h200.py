"""The job for one H200 is dry-run as it stands, without a GPU, a hub or a weight.

The model and the data sets that it names by hub id are folders of that name here, laid out like the
hub's: transformers and `datasets` prefer those. The model has its real shape and one small tensor.
"""

import json
import pathlib

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config

from offline_rlvr import verifier
from offline_rlvr.config import load_config
from offline_rlvr.pool import PoolWriter, build
from offline_rlvr.records import Group, Response, Verdict
from offline_rlvr.trainer.estimate import estimate

CONFIG = pathlib.Path(__file__).parents[2] / "configs/h200/qwen3_1.7b.yaml"
#: Of Qwen3-1.7B-Base.
SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32_768,
    "tie_word_embeddings": True,
}
#: Its weights: the embedding, and the layers' projections, MLPs and norms; one norm at the end.
WEIGHTS = 151_936 * 2048 + 28 * (2048 * (3 * 2048 + 3 * 6144) + 2 * (2048 + 128)) + 2048
PROBLEMS, GROUPS, GIB = 200, 160, 1 << 30


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working folder with everything that the job names."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "Qwen/Qwen3-1.7B-Base")
    guru = [
        {"prompt": [{"content": f"{i} + 1", "role": "user"}], "reward_model": {"ground_truth": "1"}}
        for i in range(PROBLEMS)
    ]
    openr1 = [
        {"prompt": "7 + 1", "answer": "8", "scores": [1.0, 0.0]},  # a duplicate
        {"prompt": "7 - 1", "answer": "6", "scores": [1.0, 1.0]},  # always solved: left out
    ]
    write(tmp_path / "LLM360/guru-RL-92k/train/math__combined_54.4k.parquet", guru)
    owner = tmp_path / "weqweasdas"
    write(owner / "from_default_filtered_openr1_with_scores/data/train-0.parquet", openr1)
    (tmp_path / "data").mkdir()
    held_out = {"question": "2 * 3", "answer": "6"}
    (tmp_path / "data/math500.jsonl").write_text(json.dumps(held_out) + "\n")
    return tmp_path


def save_model(folder):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.chat_template = "{% for turn in messages %}{{ turn['content'] }}\n{% endfor %}"
    fast.save_pretrained(folder)
    Qwen3Config(**SHAPE, eos_token_id=fast.eos_token_id).save_pretrained(folder)
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")


def write(file, rows):
    file.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), file)


def write_pool(config, path):
    """A pool of this job as sampling would leave it, with most groups mixed."""
    with config.build("verifier", verifier.load) as judge:
        draws = build.draw(config, judge)
    rng = np.random.default_rng(0)
    with PoolWriter.create_or_open(
        path, build.identity_of(config, build.sampling_of(config), draws)
    ) as writer:
        groups = [
            Group(
                i,
                draws.problems[i],
                tuple(draws.prompts[i]),
                tuple(response(rng) for _ in range(8)),
                tuple(Verdict("correct" if k <= i % 7 else "incorrect") for k in range(8)),
            )
            for i in range(GROUPS)
        ]
        writer.append(groups, judge.id)
    return path


def response(rng):
    length = int(rng.integers(100, 600))
    ids, logprobs = rng.integers(0, 256, length), -rng.exponential(size=length)
    return Response(tuple(ids.tolist()), tuple(logprobs.tolist()), "text", "stop")


def test_building_its_pool(place):
    config = load_config(CONFIG)
    lines = build.dry_run(config, place / "pool")
    assert f"problems   {PROBLEMS} to draw from" in lines
    assert "           1 dropped: duplicate" in lines
    goal = config.pool.mixed_groups + config.pool.probe_groups
    assert any(line.startswith(f"goal       {goal} mixed groups of 8 responses") for line in lines)
    assert not (place / "pool").exists()


def test_training_on_it(place):
    config = load_config(CONFIG)
    lines = estimate(config, write_pool(config, place / "pool"))
    updates = (GROUPS - config.pool.probe_groups) // 32
    assert any(line.startswith(f"plan          {updates} of {updates} updates") for line in lines)
    assert "reference     refreshed every 160 updates" in lines
    (memory,) = (line for line in lines if line.startswith("memory "))
    assert f"weights {4 * WEIGHTS / GIB:.3g} GiB, " in memory
    assert f"moments {12 * WEIGHTS / GIB:.3g} GiB, " in memory
    (disk,) = (line for line in lines if line.startswith("disk "))
    assert f"3 checkpoints of {12 * WEIGHTS / GIB:.1f} GiB" in disk


def test_what_it_adds_fits_the_protocol():
    config = load_config(CONFIG)
    longest = config.prompt.max_tokens + config.sampling.max_new_tokens
    assert config.generation.params == {"max_model_len": longest}
    assert config.model.learner_dtype == "float32"  # the rollout's is bfloat16
    assert config.train.precision == "bf16-mixed"
