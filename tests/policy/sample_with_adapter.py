"""Samples with vLLM from a model under an adapter; run by test_vllm_adapter.py.

In a process of its own, as a server would be: vLLM keeps what belongs to one engine in its process.
Arguments: folder of the model, of the adapter, a JSON file for the responses, the prompt's ids.
"""

import json
import sys
from pathlib import Path


def main(model: str, adapter: str, output: str, *prompt: str) -> None:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    llm = LLM(
        model=model,
        enable_lora=True,
        max_lora_rank=8,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        generation_config="vllm",
    )
    try:
        (found,) = llm.generate(
            [{"prompt_token_ids": list(map(int, prompt))}],
            SamplingParams(n=4, max_tokens=24, logprobs=0),
            lora_request=LoRARequest("adapter", 1, adapter),
            use_tqdm=False,
        )
    finally:
        llm.llm_engine.engine_core.shutdown()
    responses = [
        {
            "token_ids": list(answer.token_ids),
            "logprobs": [
                at[token].logprob
                for at, token in zip(answer.logprobs, answer.token_ids, strict=True)
            ],
        }
        for answer in found.outputs
    ]
    Path(output).write_text(json.dumps(responses))


if __name__ == "__main__":
    main(*sys.argv[1:])
