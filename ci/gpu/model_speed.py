"""Gate model-speed: prefill and decode time of a whole model, arms against the base.

A unit is one process start of each arm and two of the base. All of them start side by
side and then hold still; only one at a time is measured, forth and back, so that drift
meets every arm alike, and the base's two, A and A', take turns as A, A', A', A: its
control compares one process with the other. What a visit says is a median: of the
device time of prefills of 4,080 tokens, and of a decode step of eight requests that a
graph replays; and beside each the time on the wall, which the host's share of a step
makes vary by a quarter from visit to visit. The gate visits an arm eight times, each of
the base's processes four: one visit can be 3 % off, and of two it is half the figure.
How many replays a visit saw, and the fastest, the median and the slowest of them, is in
``extra`` (``replays ms``).

``--expect`` is that of model_arms.py: what the base's processes did on as much work.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gates"))
sys.path.insert(0, str(HERE))

import _unit  # noqa: E402
import device_clock  # noqa: E402
import tiny_glm  # noqa: E402
import watch  # noqa: E402
from model_arms import Arm, arm_environment, arms_of  # noqa: E402

WHAT = ("prefill", "decode", "prefill-wall", "decode-wall")
PREFILL_TOKENS, DECODE_REQUESTS, DECODE_STEPS = 4080, 8, 64


@contextmanager
def set_aside() -> Iterator[None]:
    """Set the L2 aside that this process's prefetcher asked for, for a while.

    Processes take turns on the GPU: what one has set aside must not be missing while
    another is measured. Does nothing where there is no prefetcher or no set-aside.
    """
    module = sys.modules.get("vllm.models.glm5next.nvidia.l2_prefetch")
    made = list(module.L2Prefetcher._instances.values()) if module is not None else []
    found = getattr(made[0], "set_aside", None) if made else None
    if found is None:
        yield
        return
    driver = module.CudaDriver()

    def limit(nbytes: int) -> None:
        with driver.primary_context(0):
            driver.set_persisting_l2(nbytes)
            driver._call("cuCtxResetPersistingL2Cache")

    limit(found.applied)
    try:
        yield
    finally:
        limit(found.before)


def worker(options: list[str], counters: list[str]) -> int:
    """One process of an arm: start the model, then measure whenever it is told to.

    Reads a line per visit from stdin and answers with a line of JSON on stdout, which
    is kept free of the engine's own output.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    parser = argparse.ArgumentParser()
    tiny_glm.add_model_options(parser)
    with tiny_glm.engine(parser.parse_args(options)) as (llm, up):
        from vllm import SamplingParams

        def sampling(tokens: int) -> Any:
            return SamplingParams(
                temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
            )

        seed = 0
        clock = device_clock.DeviceClock()

        def timed(
            lengths: tuple[int, ...], tokens: int
        ) -> tuple[float, dict[str, list[float]]]:
            nonlocal seed
            seed += 1
            prompts = tiny_glm.prompts(lengths, 1000 + seed)
            clock.take()
            begin = time.perf_counter()
            llm.generate(prompts, sampling(tokens), use_tqdm=False)
            return (time.perf_counter() - begin) * 1e3, clock.take()

        def visit() -> dict[str, Any]:
            taken: dict[str, Any] = {what: [] for what in WHAT}
            for _ in range(4):
                wall, spans = timed((PREFILL_TOKENS,), 1)
                taken["prefill"].append(sum(spans["eager"]))
                taken["prefill-wall"].append(wall)
            wall, spans = timed((32,) * DECODE_REQUESTS, DECODE_STEPS)
            # The first token of a request comes from its prefill.
            share = len(spans["replayed"]) / (DECODE_STEPS - 1)
            taken["decode"].append(statistics.median(spans["replayed"]) * share)
            taken["decode-wall"].append(wall / DECODE_STEPS)
            shown = (min, statistics.median, max)
            replayed = [round(figure(spans["replayed"]), 4) for figure in shown]
            taken["replays ms"] = [len(spans["replayed"]), *replayed]
            return taken

        for _ in range(2):  # compiles, warms up
            with set_aside():
                visit()
        before = dict(watch.counts)
        say({"up_s": up})
        for line in sys.stdin:
            if line.strip() == "end":
                break
            with set_aside():
                taken = visit()
            say(taken)
        counted = tiny_glm.counters(counters)
        say({"before": before, "after": watch.counts, "counters": counted})
        answers.flush()
    os._exit(0)  # the engine's own shutdown takes seconds and says nothing


class Process:
    """A process of an arm.

    Args:
        arm: The arm.
        model: Options of the model.
    """

    def __init__(self, arm: Arm, model: list[str]) -> None:
        self.arm, self.visits = arm, 0
        self.replays: list[list[float]] = []
        counters = [expected.counter for expected in arm.wanted("")]
        command = [sys.executable, str(HERE / "model_speed.py"), "--worker"]
        command += [json.dumps([model, list(dict.fromkeys(counters))])]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (read after the process)
        self.process = subprocess.Popen(
            command,
            env=arm_environment(arm),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )

    def read(self) -> dict[str, Any]:
        """Wait for an answer.

        Raises:
            RuntimeError: The process ended instead.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            self.log.seek(0)
            text = self.log.read().decode(errors="replace").splitlines()
            end = "\n".join(text[-12:])[-1500:]
            raise RuntimeError(f"{self.arm.name} ended: {end}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, line: str) -> dict[str, Any]:
        """Send a line, wait for the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def visit(self) -> dict[str, float]:
        """Measure once; one figure of each kind."""
        self.visits += 1
        taken = self.ask("visit")
        self.replays.append(taken.pop("replays ms"))
        return {what: statistics.median(values) for what, values in taken.items()}

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def did(told: dict[str, Any], visits: int, other: int) -> dict[str, int]:
    """What the base would have done in another number of visits.

    Args:
        told: Counts before the visits and after them.
        visits: How many they were.
        other: How many visits to tell of.

    Raises:
        _unit.Stop: The base did not do the same at each visit.
    """
    found = {}
    for name, before in told["before"].items():
        each, rest = divmod(told["after"][name] - before, visits)
        if rest:
            raise _unit.Stop("invalid", f"the base's visits differ in {name}")
        found[name] = before + each * other
    return found


def engagement(process: Process, told: dict[str, Any], base: dict[str, Any]) -> Any:
    """What an arm's counters say, beside what they have to.

    Args:
        process: The arm's.
        told: What it said at its end.
        base: What a process of the base would have done on as much work.
    """
    total = {"expected": 0, "counted": 0}
    for expected in process.arm.wanted(""):
        for what, number in expected.figures(base, told["counters"]).items():
            total[what] += number
    return total | {"captured_nodes": told["after"]["graph-nodes"]}


def measure(task: _unit.Task, args: argparse.Namespace) -> _unit.Answer:
    """Start the processes of all arms, and let them take turns."""
    base, *others = arms_of(task, args.expect, [])
    began = time.monotonic()
    processes = [Process(arm, args.model) for arm in (base, *others, base)]
    first, *rest, again = processes
    order: list[str] = []
    values: dict[str, dict[str, list[float]]] = {
        what: {arm.name: [] for arm in (base, *others)} for what in WHAT
    }
    try:
        for process in processes:
            process.read()
        ready = time.monotonic()
        for index in range(args.rounds):
            once = [again if index % 4 in (1, 2) else first, *rest]
            for process in once if index % 2 == 0 else reversed(once):
                order.append(process.arm.name)
                for what, value in process.visit().items():
                    values[what][process.arm.name].append(value)
        told = first.ask("end")
        ended = {process.arm.name: process.ask("end") for process in rest}
        engaged = {
            process.arm.name: engagement(
                process,
                ended[process.arm.name],
                did(told, first.visits, process.visits),
            )
            for process in rest
            if process.arm.expected
        }
    except RuntimeError as error:
        raise _unit.Stop("invalid", str(error)) from None
    finally:
        for process in processes:
            process.kill()
    spent = {"started": ready - began, "measured": time.monotonic() - ready}
    replays = {process.arm.name: process.replays for process in (first, *rest)}
    replays["base, the other process"] = again.replays
    nodes = {name: end["after"]["graph-nodes"] for name, end in ended.items()}
    return _unit.Answer(
        {"cells": {what: {"order": order, "values": values[what]} for what in WHAT}},
        engaged,
        extra={
            "seconds": {name: round(s, 1) for name, s in spent.items()},
            "graph nodes": {"base": told["after"]["graph-nodes"], **nodes},
            "replays ms": replays,
        },
    )


def main() -> None:
    """Be a unit of the engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--model", type=shlex.split, default=[], metavar="OPTIONS")
    parser.add_argument("--rounds", type=int, default=4, help="visits of an arm")
    args = parser.parse_args()
    if args.rounds % 4:
        parser.error("--rounds: a multiple of 4, for the base's two processes")
    _unit.run(lambda task: measure(task, args))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        raise SystemExit(worker(*json.loads(sys.argv[2])))
    main()
