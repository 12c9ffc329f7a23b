"""Worker processes that can hang, crash or eat memory without harming anything else."""

from offline_rlvr.verifier.sandbox.supervisor import Limits, Outcome, Sandbox

__all__ = ["Limits", "Outcome", "Sandbox"]
