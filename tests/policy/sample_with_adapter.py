"""Samples with vLLM from the built-in model under an adapter; run by test_vllm_adapter.py.

In a process of its own, as a command would be: vLLM keeps what belongs to an engine in its process.
Arguments: folder of the adapter, a JSON file for the responses, the prompt's ids.
"""

import json
import sys
from pathlib import Path

from offline_rlvr.generation import Sampling, load


def main(adapter: str, output: str, *prompt: str) -> None:
    generator = load(
        "vllm",
        name_or_path="builtin",
        adapter=adapter,
        sampling=Sampling(24, stop_token_ids=(2,)),
        max_model_len=128,
    )
    try:
        ((*responses,),) = generator.submit([list(map(int, prompt))], [[0] * 4])()
    finally:
        generator.close()
    found = [{"token_ids": r.token_ids, "logprobs": r.behavior_logprobs} for r in responses]
    Path(output).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
