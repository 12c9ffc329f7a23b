"""Weights, gradients and Adam's moments split over the devices (FSDP2), and whole again.

Each device holds a part of every weight; a layer's whole weights exist while it computes, and its
gradients are added in float32 after every backward pass. A checkpoint holds whole tensors, so it
is the same whatever wrote it.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from offline_rlvr.policy import Policy


def shard(policy: Policy) -> None:
    """Shard every decoder layer, and what lies outside of them, over all processes."""
    mesh = init_device_mesh(policy.device.type, (dist.get_world_size(),))
    # Resharded after the forward pass, too: a pass without gradient would leave whole weights
    # behind, which the optimizer's step does not reach.
    settings: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": True,
        "mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float32),
    }
    kinds = policy.causal_lm._no_split_modules or ()
    for module in list(policy.modules()):
        if type(module).__name__ in kinds:
            fully_shard(module, **settings)
    fully_shard(policy, **settings)
    register_fsdp_forward_method(policy, "score")
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)  # shares of an update add up
            module.set_force_sum_reduction_for_comms(True)  # gloo knows no other


def whole(state: Any) -> Any:
    """A nested state with sharded tensors put together on the CPU; every process takes part."""
    if isinstance(state, DTensor):
        return state.full_tensor().cpu()
    if isinstance(state, dict):
        return {key: whole(value) for key, value in state.items()}
    return [whole(value) for value in state] if isinstance(state, list) else state


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds of a sharded model; every process takes part.

    Tied weights are there once; frozen ones, an adapter's base, are not.
    """
    every = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    saved = {name for name, weight in model.named_parameters() if weight.requires_grad}
    state = model.state_dict()
    return whole({name: state[name] for name in state if name in saved or name not in every})


def like_parameters(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state with its tensors sharded as its parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    placed = {
        number: {key: _like(value, parameter) for key, value in state["state"][number].items()}
        for number, parameter in zip(numbers, parameters, strict=True)
        if number in state["state"]
    }
    return {**state, "state": placed}


def _like(value: Any, parameter: Tensor) -> Any:
    if not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value  # not sharded, or the number of steps
    value = value.to(parameter.device)
    return distribute_tensor(value, parameter.device_mesh, parameter.placements)
