"""Gates model-parity*: the same tokens and log-probabilities from every arm.

An arm on a configuration is a process (tiny_glm.py). Configurations are taken in their
order, each with the base first, some processes side by side. A configuration in which
the base does not run is not tested, and its other arms are not started. A process that
ends without an answer is started once more, with nothing beside it. Every arm answers
each prompt twice, and prompts on which the base does not repeat itself are left out of
the comparison and listed.

``--expect ARM[@CONFIG]:MODULE:PATH`` names a counter of the tree (`tiny_glm.counters`)
that has to be above zero in the configurations whose name matches the pattern; with
``=[N*]WHAT`` it has to be exactly what the base's process of the same configuration did
(N times), in the words of watch.py. ``--forbid`` asks that it stays at zero.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gates"))

import _unit  # noqa: E402

NO_ANSWER: dict[str, Any] = {"tokens": [], "logprobs": []}
# What a process's seconds are made of, beside all of them.
PARTS = ("import_s", "start_s", "answer_s")


@dataclass(frozen=True)
class Expected:
    """A counter of the tree, and what it has to be.

    Args:
        pattern: Of the names of configurations in which it is asked for.
        counter: ``MODULE:PATH``.
        watched: What the base's process counts, None where anything above zero will do.
        times: How often the counter counts each of those.
    """

    pattern: str
    counter: str
    watched: str | None = None
    times: int = 1

    @classmethod
    def parse(cls, pattern: str, text: str) -> Expected:
        """Read ``MODULE:PATH[=[N*]WHAT]``."""
        counter, _, watched = text.partition("=")
        times, star, what = watched.rpartition("*")
        return cls(pattern, counter, what or None, int(times) if star else 1)

    def figures(
        self, base: dict[str, int], own: dict[str, int | None]
    ) -> dict[str, int]:
        """What was expected and what was counted.

        Args:
            base: What the base's process did.
            own: The arm's counters.
        """
        counted = own.get(self.counter) or 0
        if self.watched is None:
            return {"expected": 1, "counted": int(counted > 0)}
        return {"expected": self.times * base[self.watched], "counted": counted}


@dataclass
class Arm:
    """One side: where its ``vllm`` is, its switches, what is asked of its counters."""

    name: str
    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    expected: list[Expected] = field(default_factory=list)
    forbidden: list[tuple[str, str]] = field(default_factory=list)

    def wanted(self, config: str) -> list[Expected]:
        """What is expected in a configuration."""
        return [e for e in self.expected if fnmatch.fnmatch(config, e.pattern)]

    def unwanted(self, config: str) -> list[str]:
        """Counters that must stay at zero in a configuration."""
        return [c for pattern, c in self.forbidden if fnmatch.fnmatch(config, pattern)]


@dataclass
class Job:
    """One arm on one configuration: a process."""

    config: str
    options: list[str]
    arm: Arm
    out: Path
    process: subprocess.Popen[str] | None = None
    begun: float = 0.0
    seconds: float = 0.0
    why: str | None = None
    failed: str | None = None

    @property
    def places(self) -> int:
        """How many places of ``--parallel`` it takes: real widths need the memory."""
        return 2 if "--full" in self.options else 1

    def answer(self) -> dict[str, Any] | None:
        """What the process wrote, or None."""
        try:
            read: dict[str, Any] = json.loads(self.out.read_text())
        except (OSError, ValueError):
            return None
        return read


def arm_environment(arm: Arm) -> dict[str, str]:
    """The environment of an arm's processes."""
    drop = ("PYTHONPATH", "VLLM_GLM53_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env |= {
        "PYTHONPATH": str(arm.root),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    # vLLM keeps what it learnt of a model's module by the module's name: arms whose
    # modules differ would take it from each other at every start.
    if shared := env.get("VLLM_CACHE_ROOT"):
        env.setdefault("DG_JIT_CACHE_DIR", str(Path(shared) / "deep_gemm"))
        env.setdefault("TILELANG_CACHE_DIR", str(Path(shared) / "tilelang"))
        env["VLLM_CACHE_ROOT"] = str(Path(shared) / arm.name)
    env.setdefault("CUDA_HOME", "/usr/local/cuda")
    return env | arm.variables


def start(job: Job) -> subprocess.Popen[str]:
    """Start one arm on one configuration."""
    command = [sys.executable, str(HERE / "tiny_glm.py"), "--out", str(job.out)]
    command += job.options
    asked = [e.counter for e in job.arm.wanted(job.config)]
    for counter in dict.fromkeys(asked + job.arm.unwanted(job.config)):
        command += ["--counter", counter]
    log = job.out.with_suffix(".log").open("w")
    return subprocess.Popen(
        command,
        env=arm_environment(job.arm),
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ask(arms: list[Arm], expect: list[str], forbid: list[str]) -> None:
    """Give each arm what ``--expect`` and ``--forbid`` ask of it.

    Raises:
        _unit.Stop: One names no arm.
    """
    by_name = {arm.name: arm for arm in arms}
    for option, texts in (("expect", expect), ("forbid", forbid)):
        for text in texts:
            name, _, counter = text.partition(":")
            name, _, pattern = name.partition("@")
            if name not in by_name:
                raise _unit.Stop("invalid", f"--{option}: there is no arm {name}")
            if option == "expect":
                found = Expected.parse(pattern or "*", counter)
                by_name[name].expected.append(found)
            else:
                by_name[name].forbidden.append((pattern or "*", counter))


def arms_of(task: _unit.Task, expect: list[str], forbid: list[str]) -> list[Arm]:
    """The task's arms, the base first, with what is asked of them.

    Raises:
        _unit.Stop: There is no site, or a counter is of no arm.
    """
    arms = [Arm(name, root, task.env[name]) for name, root in task.sites.items()]
    if not all((arm.root / "vllm").is_dir() for arm in arms):
        raise _unit.Stop("not-tested", "no installed vLLM was named (--site)")
    arms.sort(key=lambda arm: arm.name != "base")
    ask(arms, expect, forbid)
    return arms


def tail(path: Path) -> str:
    """Last lines of a log, without paths of this machine's site."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-12:])[-1500:]


def last_line(text: str) -> str:
    """The last line of a log, which says what the matter was."""
    return text.strip().rpartition("\n")[2][:200]


def run_jobs(jobs: list[Job], args: argparse.Namespace) -> None:
    """Run jobs in their order, some side by side.

    A job of a configuration whose base (its first job) failed is left out.
    """
    deadline = time.monotonic() + args.budget_s
    free = args.parallel
    queue = list(jobs)
    running: list[Job] = []
    reference = {job.config: job for job in reversed(jobs)}
    while queue or running:
        now = time.monotonic()
        for job in list(running):
            assert job.process is not None
            if job.process.poll() is None:
                late = now - job.begun > args.timeout
                if not late and now < deadline:
                    continue
                job.process.kill()
                job.process.wait()
                job.why = f"stopped after {now - job.begun:.0f} s: " + (
                    "its limit" if late else "no time left"
                )
            job.seconds = time.monotonic() - job.begun
            running.remove(job)
            free += job.places
            if job.answer() is None and not job.why and job.failed is None:
                # Alone, its neighbours cannot be the reason.
                job.failed = tail(job.out.with_suffix(".log"))
                queue.append(job)
            print(
                f"{job.config}/{job.arm.name}: {job.seconds:.0f} s, "
                f"exit {job.process.returncode} {job.why or ''}",
                file=sys.stderr,
                flush=True,
            )
        for job in list(queue):
            first = reference[job.config]
            if job is not first and first in running:
                continue
            if job is not first and first not in queue and first.answer() is None:
                job.why = "the base did not run"
            elif now + args.least_s > deadline:
                job.why = "no time left"
            if job.why:
                queue.remove(job)
            elif job.failed and running:
                continue
            elif free >= job.places and (job is first or first not in queue):
                queue.remove(job)
                free -= job.places
                job.begun = now
                job.process = start(job)
                running.append(job)
        time.sleep(0.1)


def plan(arms: list[Arm], configs: list[str], work: Path) -> dict[str, list[Job]]:
    """The jobs of every configuration, the base's first."""
    by_config = {}
    for text in configs:
        name, _, options = text.partition(":")
        name, _, chosen = name.partition("=")
        names = chosen.split("+") if chosen else [arm.name for arm in arms]
        by_config[name] = [
            Job(name, shlex.split(options), arm, work / f"{name}-{arm.name}.json")
            for arm in arms
            if arm is arms[0] or arm.name in names
        ]
    return by_config


@dataclass
class Found:
    """What a unit has found so far, and what it had to leave out."""

    cases: list[dict[str, Any]] = field(default_factory=list)
    engagement: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, jobs: list[Job]) -> None:
        """Take in the jobs of one configuration, the base's first.

        Raises:
            _unit.Stop: A feature engaged where it must not.
        """
        first, config = jobs[0], jobs[0].config
        base = first.answer()
        if base is None:
            why = first.why or first.failed or tail(first.out.with_suffix(".log"))
            self.notes.append(f"{config}: not tested: {why}")
            self.late.append(f"{config} ({last_line(why)})")
            return
        same = [n for n, repeated in enumerate(base["repeats"]) if repeated]
        for n, repeated in enumerate(base["repeats"]):
            if not repeated:
                self.notes.append(f"{config}, prompt {n}: the base does not repeat it")
        if not same:
            self.late.append(f"{config} (the base repeats none of its answers)")
            return
        for job in jobs:
            self._job(job, base, same)

    def _job(self, job: Job, base: dict[str, Any], same: list[int]) -> None:
        place = f"{job.config}, {job.arm.name}"
        if job.failed is not None:
            self.notes.append(f"{place}, started twice: {last_line(job.failed)}")
        answer = job.answer()
        if answer is None and job.why:
            self.notes.append(f"{place}: {job.why}")
            self.late.append(f"{place} ({job.why})")
            return
        for n in same:
            # The base answers and the arm ends, twice: that is no equality.
            own = NO_ANSWER if answer is None else answer["answers"][n]
            case = {
                "id": f"{place}, prompt {n}",
                **difference(base["answers"][n], own),
            }
            self.cases.append(case)
        if answer is None:
            return
        counters, watched = answer["counters"], base["watched"]
        if stray := [c for c in job.arm.unwanted(job.config) if counters.get(c)]:
            text = f"{place}: counted although it is off: " + ", ".join(stray)
            raise _unit.Stop("rejected", text)
        total = self.engagement.setdefault(
            job.arm.name, {"expected": 0, "counted": 0, "captured_nodes": 0}
        )
        for expected in job.arm.wanted(job.config):
            figures = expected.figures(watched, counters)
            for what, number in figures.items():
                total[what] += number
            if figures["expected"] != figures["counted"]:
                name = expected.counter.rpartition(":")[2]
                did = {k: (watched[k], v) for k, v in answer["watched"].items()}
                self.notes.append(f"{place}: {name}: {figures}; base, arm: {did}")
        if job.arm.expected:
            total["captured_nodes"] += answer["watched"]["graph-nodes"]
        times = [job.seconds, *(answer.get(part, 0.0) for part in PARTS)]
        self.figures.setdefault(job.config, {})[job.arm.name] = {
            "digest": answer["digest"],
            "graph nodes": answer["watched"]["graph-nodes"],
            "seconds": [round(t, 1) for t in times],
        }

    def answer(self, asked: set[str]) -> _unit.Answer:
        """The unit's answer; of arms of which something was asked their engagement."""
        engagement = {n: e for n, e in self.engagement.items() if n in asked}
        return _unit.Answer(
            {"cases": self.cases}, engagement, self.notes, {"arms": self.figures}
        )


def measure(task: _unit.Task, args: argparse.Namespace) -> _unit.Answer:
    """Run every arm on its configurations and compare it with the base."""
    arms = arms_of(task, args.expect, args.forbid)
    found = Found()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        by_config = plan(arms, args.config, Path(folder))
        run_jobs(list(chain.from_iterable(by_config.values())), args)
        for jobs in by_config.values():
            found.add(jobs)
    answer = found.answer({arm.name for arm in arms if arm.expected})
    if found.late or not found.cases:
        # What there was is kept beside the unit, for the verdict is about the whole.
        text = json.dumps(answer.document(), sort_keys=True)
        (task.scratch / "partial.json").write_text(text)
        unequal = sum(not case["equal"] for case in found.cases)
        reason = f"{len(found.cases)} prompts were compared, {unequal} differ; "
        left = "; ".join(found.late) or "everything"
        raise _unit.Stop("not-tested", f"{reason}left out: {left}")
    return answer


def difference(want: dict[str, Any], got: dict[str, Any]) -> dict[str, Any]:
    """Whether an answer is the reference's: tokens, and log-probabilities to the bit.

    An element is a token, or a log-probability of one of the likeliest tokens.
    """
    size = apart = 0
    for what in ("tokens", "logprobs"):
        pairs = list(zip(want[what], got[what], strict=False))
        flat = pairs
        if what == "logprobs":
            flat = [
                (a, b) for one, two in pairs for a, b in zip(one, two, strict=False)
            ]
        longer = abs(len(want[what]) - len(got[what]))
        size += len(flat) + longer
        apart += sum(a != b for a, b in flat) + longer
    same = want["tokens"] == got["tokens"] and want["logprobs"] == got["logprobs"]
    return {"equal": same, "elements": size, "differing": apart or int(not same)}


def main() -> None:
    """Be a unit of the engine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--forbid", action="append", default=[])
    parser.add_argument(
        "--config",
        action="append",
        required=True,
        metavar="NAME[=ARM+ARM...]:OPTIONS",
        help="options of tiny_glm.py; the arms beside the base, default all",
    )
    parser.add_argument(
        "--parallel", type=int, default=4, help="arms side by side; --full counts twice"
    )
    parser.add_argument("--timeout", type=float, default=240, help="s per process")
    parser.add_argument("--budget-s", type=float, default=3600, help="s in all")
    parser.add_argument(
        "--least-s", type=float, default=40, help="s to start a process"
    )
    args = parser.parse_args()
    _unit.run(lambda task: measure(task, args))


if __name__ == "__main__":
    main()
