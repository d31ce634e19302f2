# SPDX-License-Identifier: Apache-2.0
"""Runs what a strategy wants, on as many workers as there are.

Every worker has a folder of its own, which goes from one tree to the next. Answers are
remembered by tree and written to the log before the strategy hears of them.
"""

import os
import queue
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol

from stackctl.bisect.command import CANNOT_RUN, CancelledError, Control, Evaluator
from stackctl.bisect.folder import Switched, WorkFolder, remove
from stackctl.bisect.journal import Journal
from stackctl.bisect.model import Answer, Evaluation, K, Probe, Strategy, Work
from stackctl.errors import InputError, UsageError
from stackctl.git.store import Store
from stackctl.model.ids import TreeId
from stackctl.progress import SILENT, Progress
from stackctl.scratch import scratch_folder


class Watch(Protocol):
    """Is told what a search does."""

    def started(self, worker: int, name: str) -> None:
        """A worker begins to try a tree."""

    def ended(self, worker: int | None, evaluation: Evaluation) -> None:
        """An answer is there; no worker where it was remembered."""

    def cancelled(self, worker: int, name: str) -> None:
        """A run was ended because it no longer matters."""

    def state(self, text: str) -> None:
        """What is known and what is left."""


class Unwatched:
    """A watch that looks away."""

    def started(self, worker: int, name: str) -> None:
        """A worker begins to try a tree."""

    def ended(self, worker: int | None, evaluation: Evaluation) -> None:
        """An answer is there."""

    def cancelled(self, worker: int, name: str) -> None:
        """A run was ended."""

    def state(self, text: str) -> None:
        """What is known and what is left."""


UNWATCHED = Unwatched()


@dataclass
class _Worker:
    number: int
    folder: WorkFolder


@dataclass
class _Running(Generic[K]):
    key: K
    probe: Probe
    worker: _Worker
    control: Control = field(default_factory=Control)
    thread: threading.Thread | None = None
    unwanted: bool = False


@dataclass
class _Ended:
    number: int
    answer: Answer | None
    switched: Switched | None
    error: BaseException | None


@contextmanager
def work_folders(store: Store, parent: Path, count: int) -> Iterator[list[WorkFolder]]:
    """Make folders for workers, and remove them at the end.

    Args:
        store: Holds the trees.
        parent: Folder to make them in.
        count: How many.

    Yields:
        One folder per worker, empty still.
    """
    with ExitStack() as stack:
        folders = []
        for _ in range(count):
            # Dead folders of this name are removed, also in a folder of the user's.
            folder = stack.enter_context(scratch_folder(parent, ".stackctl-bisect-"))
            path = folder / "tree"
            path.mkdir()
            path.chmod(0o755)
            # A store is used by one thread at a time.
            work = WorkFolder(Store(store.git_dir), path)
            stack.callback(_clear, work)
            folders.append(work)
        yield folders


def _clear(work: WorkFolder) -> None:
    """Remove a work folder, also what the command made hard to remove."""
    work.close()
    with suppress(InputError, OSError):
        remove(os.fsencode(work.path))


class Driver(Generic[K]):
    """Tries trees for strategies, and remembers the answers.

    Args:
        folders: One folder per worker.
        evaluator: Tries a tree.
        journal: Where answers are written.
        outputs: Folder for what the commands print.
        repeat: Whether a tree is run again when it is asked for again.
        watch: Is told what is done.
        progress: Is told of the first materialisation.
    """

    def __init__(
        self,
        folders: list[WorkFolder],
        evaluator: Evaluator,
        journal: Journal,
        outputs: Path,
        *,
        repeat: bool = False,
        watch: Watch = UNWATCHED,
        progress: Progress = SILENT,
    ) -> None:
        self._idle = [_Worker(n, folder) for n, folder in enumerate(folders)][::-1]
        self._evaluator = evaluator
        self._journal = journal
        self._outputs = outputs
        self._repeat = repeat
        self._watch = watch
        self._progress = progress
        self._ended: queue.SimpleQueue[_Ended] = queue.SimpleQueue()
        self._started = time.perf_counter_ns()
        self._count = len(journal.evaluations)
        self._unused: dict[TreeId, deque[Evaluation]] = defaultdict(deque)
        for each in journal.evaluations:
            self._unused[each.tree].append(each)
        self.known: dict[TreeId, Evaluation] = {}
        self.evaluations: list[Evaluation] = []
        self._work = Work()
        self._turn = threading.Lock()
        self._first_start = 0

    @property
    def work(self) -> Work:
        """What it cost so far."""
        return replace(
            self._work,
            evaluations=len(self.evaluations),
            replayed=sum(each.replayed for each in self.evaluations),
            waited_ns=max(self._first_start - self._started, 0),
            ns=time.perf_counter_ns() - self._started,
        )

    def drive(
        self,
        strategy: Strategy[K],
        resolve: Callable[[K], Probe | None],
        good_end: K,
    ) -> None:
        """Run what a strategy wants until it is done.

        Args:
            strategy: Decides what is tried.
            resolve: Gives the tree of a key; None where there is no such tree because
                its patches conflict.
            good_end: Key of the good end, where a command that cannot be run is an
                error and not an answer.

        Raises:
            AbortedError: The command asked to stop.
            UsageError: The command cannot be run at all.
        """
        running: dict[int, _Running[K]] = {}
        try:
            while True:
                self._fill(strategy, resolve, running, good_end)
                self._watch.state(strategy.state())
                if not running:
                    if strategy.done:
                        return
                    raise AssertionError("the strategy wants nothing and is not done")
                ended = self._ended.get()
                one = running.pop(ended.number)
                self._idle.append(one.worker)
                self._account(one, ended, strategy, good_end)
                self._cancel(strategy, running)
        except BaseException:
            self._stop(running)
            raise

    def _fill(
        self,
        strategy: Strategy[K],
        resolve: Callable[[K], Probe | None],
        running: dict[int, _Running[K]],
        good_end: K,
    ) -> None:
        """Start what is wanted, and answer at once what is known."""
        while not strategy.done:
            keys = [one.key for one in running.values() if not one.unwanted]
            if not self._idle:
                return
            wanted = strategy.wants(len(self._idle), keys)
            news = False
            for key in wanted:
                if strategy.done or not self._idle:
                    break
                probe = resolve(key)
                if probe is None:
                    strategy.tell(key, "conflict")
                    news = True
                    continue
                known = self._recall(probe)
                if known is not None:
                    self._check_end(key, good_end, known.answer)
                    strategy.tell(key, known.answer.verdict)
                    news = True
                    continue
                if not self._repeat and any(
                    one.probe.tree == probe.tree and not one.unwanted
                    for one in running.values()
                ):
                    continue  # its answer is on the way
                self._start(key, probe, running)
            if not news:
                return
            self._cancel(strategy, running)

    def _recall(self, probe: Probe) -> Evaluation | None:
        """Return what is known of a tree, from this run or from the log."""
        if not self._repeat and probe.tree in self.known:
            return self.known[probe.tree]
        waiting = self._unused.get(probe.tree)
        if not waiting:
            return None
        found = waiting.popleft()
        self._take(None, found)
        return found

    def _take(self, worker: int | None, evaluation: Evaluation) -> None:
        self.known[evaluation.tree] = evaluation
        self.evaluations.append(evaluation)
        self._watch.ended(worker, evaluation)

    def _start(self, key: K, probe: Probe, running: dict[int, _Running[K]]) -> None:
        worker = self._idle.pop()
        one = _Running(key, probe, worker)
        self._count += 1
        output = self._outputs / f"{self._count:04d}-{probe.tree[:12]}.txt"
        # The line on the terminal is one: only the first worker writes to it.
        progress = self._progress if worker.number == 0 else SILENT
        one.thread = threading.Thread(
            target=self._work_on, args=(one, output, progress), daemon=True
        )
        running[worker.number] = one
        self._watch.started(worker.number, probe.name)
        one.thread.start()

    def _work_on(self, one: _Running[K], output: Path, progress: Progress) -> None:
        answer: Answer | None = None
        switched: Switched | None = None
        problem: BaseException | None = None
        worker = one.worker
        try:
            # Two at once would only take turns at the disk: so one begins early.
            with self._turn if worker.folder.tree is None else nullcontext():
                if one.control.cancelled:
                    raise CancelledError
                switched = worker.folder.switch(one.probe.tree, progress)
            self._first_start = self._first_start or time.perf_counter_ns()
            if one.control.cancelled:
                raise CancelledError
            answer = self._evaluator.evaluate(
                worker.folder.path, one.probe, one.control, output, worker.number
            )
        except BaseException as error:
            problem = error
        self._ended.put(_Ended(worker.number, answer, switched, problem))

    def _account(
        self, one: _Running[K], ended: _Ended, strategy: Strategy[K], good_end: K
    ) -> None:
        work = self._work
        if ended.switched is not None:
            spent = ended.switched.ns
            if ended.switched.first:
                work = replace(work, first_ns=work.first_ns + spent)
            else:
                work = replace(
                    work, switch_ns=work.switch_ns + spent, switches=work.switches + 1
                )
        if isinstance(ended.error, CancelledError):
            self._work = replace(work, cancelled=work.cancelled + 1)
            self._watch.cancelled(one.worker.number, one.probe.name)
            return
        if ended.error is not None:
            self._work = work
            if one.unwanted:
                return
            raise ended.error
        answer = ended.answer
        assert answer is not None
        self._work = replace(work, run_ns=work.run_ns + answer.ns)
        self._check_end(one.key, good_end, answer)
        probe = one.probe
        evaluation = Evaluation(probe.name, probe.tree, probe.composition, answer)
        self._journal.add(evaluation)
        self._take(one.worker.number, evaluation)
        # Kept for later, but a strategy that gave up waiting has gone on without it.
        if not one.unwanted:
            strategy.tell(one.key, answer.verdict)

    def _check_end(self, key: K, good_end: K, answer: Answer) -> None:
        if key == good_end and answer.exit in CANNOT_RUN:
            found = "not found" if answer.exit == CANNOT_RUN[1] else "not executable"
            raise UsageError(
                f"the command ended with {answer.exit} at the good end: it is {found}, "
                "or says so",
                kind="cannot-run",
                hint="name a command that the shell finds from inside the tree, with "
                f"its absolute path; output: {answer.output}",
                where={"status": answer.exit},
            )

    def _cancel(self, strategy: Strategy[K], running: dict[int, _Running[K]]) -> None:
        wanted = {n: one for n, one in running.items() if not one.unwanted}
        if strategy.done:
            useless = [one.key for one in wanted.values()]
        else:
            useless = strategy.useless([one.key for one in wanted.values()])
        for one in wanted.values():
            if one.key in useless:
                one.unwanted = True
                one.control.cancel()

    def _stop(self, running: dict[int, _Running[K]]) -> None:
        for one in running.values():
            one.control.cancel()
        for one in running.values():
            if one.thread is not None:
                one.thread.join()
