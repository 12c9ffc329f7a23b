"""The work of a build: sampling of the next chunks overlaps verifying and writing the last."""

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np

from offline_rlvr import generation
from offline_rlvr.config import Config
from offline_rlvr.errors import DataError, printable
from offline_rlvr.generation import Answer, Generator, Pending, Sampling, seed_for
from offline_rlvr.pool.build.draw import Draws, Slice
from offline_rlvr.pool.build.tally import Tally
from offline_rlvr.pool.timing import Timing, add_timing
from offline_rlvr.pool.writer import PoolWriter
from offline_rlvr.progress import Progress
from offline_rlvr.records import Group, Response
from offline_rlvr.verifier import Verifier

#: Chunks being sampled at a time: with two, the engine has work while the longest responses of the
#: first are still growing.
CHUNKS_AHEAD = 2


@dataclass(frozen=True)
class Throughput:
    """What was done, without the start of the engine.

    Attributes:
        tokens: Response tokens sampled, verified and committed.
        seconds: Time it took.
    """

    tokens: int = 0
    seconds: float = 0.0


def generator_of(config: Config, sampling: Sampling) -> Generator:
    """The back-end that a config names, with the model that it names."""
    model = config.model
    return config.build(
        "generation",
        generation.load,
        name_or_path=model.name_or_path,
        revision=model.revision,
        dtype=model.dtype,
        device=model.device,
        sampling=sampling,
    )


class _Chunk(NamedTuple):
    """What became of one chunk: positions drawn, and the groups that were committed."""

    drawn: int
    groups: list[Group]


class Filler:
    """Samples, verifies and commits chunks of groups until the tally says enough.

    The calling thread samples; one other thread verifies and commits, in draw order. Whatever ends
    the work, a chunk that was sampled is committed, as long as the disk takes it.
    """

    def __init__(
        self,
        config: Config,
        writer: PoolWriter,
        draws: Draws,
        sampling: Sampling,
        judge: Verifier,
        part: Slice,
        tally: Tally,
    ):
        self.config, self.writer, self.draws = config, writer, draws
        self.sampling, self.judge, self.tally = sampling, judge, tally
        # Whatever is missing is drawn, in order: after an interruption the rest, after a repair
        # what was taken out.
        todo = np.setdiff1d(part.positions(len(draws.problems)), writer.committed_group_ids)
        self._todo: Iterator[int] = iter(todo.tolist())
        # Problems that no builder draws are counted once, by the first slice.
        self._drops = draws.dropped if part.index == 1 and not writer.commit else {}
        self._under_way = 0
        self._generator: Generator | None = None
        self._started: float | None = None
        self._settled = 0.0

    def run(self) -> Throughput:
        """Fill the pool.

        Raises:
            OfflineRlvrError: Of the engine, the verifier or the disk; what was committed stays.
        """
        sampling: deque[tuple[list[int], Pending]] = deque()
        writing: Future[_Chunk] | None = None
        try:
            with (
                Progress("mixed groups", self.tally.wanted, "groups") as progress,
                ThreadPoolExecutor(1, "verify-and-write") as background,
            ):
                while True:
                    while len(sampling) < CHUNKS_AHEAD and (rows := self._next_rows()):
                        sampling.append((rows, self._submit(rows)))
                    if not self._under_way:
                        break
                    answers = sampling[0][1]() if sampling else None
                    if writing is not None:
                        self._settle(writing)
                        writing = None
                    if answers is not None:
                        rows, _ = sampling.popleft()
                        writing = background.submit(self._commit, rows, answers)
                    progress.update(max(self.tally.mixed, 0), f"{self.tally.sampled} sampled")
        finally:
            if self._generator is not None:
                self._generator.close()
        if self._started is None:
            return Throughput()
        return Throughput(self.tally.tokens, time.monotonic() - self._started)

    def _next_rows(self) -> list[int]:
        """Positions of the next chunk, empty when none is needed or allowed for now."""
        room = min(self.config.pool.chunk_groups, self.tally.room(self._under_way))
        rows = list(islice(self._todo, room))
        self._under_way += len(rows)
        return rows

    def _submit(self, rows: Sequence[int]) -> Pending:
        if self._generator is None:
            self._generator = generator_of(self.config, self.sampling)
        pool = self.config.pool
        seeds = [[seed_for(pool.seed, row, i) for i in range(pool.group_size)] for row in rows]
        pending = self._generator.submit([self.draws.prompts[row] for row in rows], seeds)
        # An engine may start as late as on its first submission.
        if self._started is None:
            self._started = self._settled = time.monotonic()
        return pending

    def _commit(self, rows: Sequence[int], answers: Sequence[Answer]) -> _Chunk:
        """Verify the responses and commit them as groups; runs in the background."""
        if len(answers) != len(rows):
            raise DataError(
                f"the engine answered {len(answers)} of {len(rows)} prompts",
                hint="type the same command again; see the engine's log",
            )
        kept = self._usable(rows, answers)
        pairs = [
            (self.draws.problems[row].answer, response.text)
            for row, responses in kept
            for response in responses
        ]
        verdicts = self.judge.score(pairs)
        k = self.config.pool.group_size
        groups = [
            Group(
                row,
                self.draws.problems[row],
                tuple(self.draws.prompts[row]),
                tuple(responses),
                tuple(verdicts[slot * k : (slot + 1) * k]),
            )
            for slot, (row, responses) in enumerate(kept)
        ]
        self.writer.append(groups, self.judge.id, self._drops)
        self._drops = {}
        return _Chunk(len(rows), groups)

    def _usable(
        self, rows: Sequence[int], answers: Sequence[Answer]
    ) -> list[tuple[int, list[Response]]]:
        """Positions with K responses each; the others are told, counted, and left out.

        Raises:
            DataError: They are the majority: it is not this or that prompt that is wrong.
        """
        k = self.config.pool.group_size
        kept: list[tuple[int, list[Response]]] = []
        refused: list[DataError] = []
        for row, answer in zip(rows, answers, strict=True):
            if not isinstance(answer, DataError) and len(answer) != k:
                answer = DataError(f"the engine gave {len(answer)} responses of {k}")
            if not isinstance(answer, DataError):
                kept.append((row, answer))
                continue
            refused.append(answer)
            name = self.draws.problems[row].id
            print(f"group {row} (problem {printable(name)}) is left out: {answer}", file=sys.stderr)
        if len(refused) > len(kept):
            raise refused[0]
        if refused:
            self._drops = {**self._drops, "unusable_answer": len(refused)}
        return kept

    def _settle(self, writing: "Future[_Chunk]") -> None:
        """Wait for a commit and count it."""
        chunk = writing.result()
        self._under_way -= chunk.drawn
        tokens = self.tally.tokens
        self.tally.add(chunk.groups)
        now = time.monotonic()
        add_timing(
            self.writer.path,
            Timing(len(chunk.groups), self.tally.tokens - tokens, now - self._settled),
        )
        self._settled = now
