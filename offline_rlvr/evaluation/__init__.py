"""Held-out accuracy: mean@k, unbiased pass@k, intervals over problems, their files. No torch."""

from offline_rlvr.evaluation.files import (
    evaluation_path,
    read_evaluation,
    read_evaluations,
    write_evaluation,
)
from offline_rlvr.evaluation.intervals import Interval, bootstrap_interval, paired_difference
from offline_rlvr.evaluation.metrics import mean_at_k, pass_at_k, pass_at_k_of
from offline_rlvr.evaluation.records import Evaluation, best_update, problem_weighted
from offline_rlvr.evaluation.seeds import seeded_interval

__all__ = [
    "Evaluation",
    "Interval",
    "best_update",
    "bootstrap_interval",
    "evaluation_path",
    "mean_at_k",
    "paired_difference",
    "pass_at_k",
    "pass_at_k_of",
    "problem_weighted",
    "read_evaluation",
    "read_evaluations",
    "seeded_interval",
    "write_evaluation",
]
