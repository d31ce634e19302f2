"""Gate model-speed: prefill and decode time of a whole model, arms against the base.

A block is one process start of each arm, the base at both ends: A, B, C, ..., A'. All
processes of a block start side by side and then hold still; only one at a time is
measured, forth and back through the block, so that drift meets every arm alike. What a
process says is the median of its visits: the device time of a prefill of 4,080 tokens,
and of a decode step of eight requests that a graph replays; and beside each the time on
the wall, which the host's share of a step makes vary by a quarter from visit to visit.
One block is one pair of each arm against A; A' against A is the control.

    python3 ci/gpu/model_speed.py --site /tmp/site --json \
        --arm base \
        --arm set=overlay/parallel-prefill,VLLM_GLM53_KPOOL_PARALLEL_PREFILL=1 \
        --expect set:vllm.some.module:attribute \
        --claim set:prefill:-0.01 --model "--full --layers 8 --mla-every 2"

A claim names an arm, a time, and a margin: how much faster than the
base the arm has to be at least (negative: how much slower it may be). It is qualified
where the whole 95 % t interval of the paired log-ratios is on the good side, and the
gate is invalid where the 99 % interval of the control leaves zero out. What no claim
names is shown and decides nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gates"))
sys.path.insert(0, str(HERE))

import _gate  # noqa: E402
import device_clock  # noqa: E402
import tiny_glm  # noqa: E402
from model_arms import Arm, arm_environment, build, describe, engine_arms, parse_arms  # noqa: E402

WHAT = ("prefill", "decode", "prefill-wall", "decode-wall")
PREFILL_TOKENS, DECODE_REQUESTS, DECODE_STEPS = 4080, 8, 64
BLOCKS, MINIMUM_BLOCKS = 9, 6
# Student's t, two-sided 95 %, by degrees of freedom (NIST/SEMATECH e-Handbook,
# table 1.3.6.7.2).
_T95 = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306,
    9: 2.262, 10: 2.228, 11: 2.201, 12: 2.179, 13: 2.160, 14: 2.145, 15: 2.131,
}  # fmt: skip


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
            return taken

        visit()  # compiles
        visit()  # warms up
        before = tiny_glm.counters(counters)
        say({"up_s": up})
        for line in sys.stdin:
            if line.strip() == "end":
                break
            say(visit())
        after = tiny_glm.counters(counters)
        say({"before": before, "after": after})
        answers.flush()
    os._exit(0)  # the engine's own shutdown takes seconds and says nothing


class Process:
    """A process of an arm, as its block sees it."""

    def __init__(
        self, arm: Arm, args: argparse.Namespace, cache: Path | None, gpu: str | None
    ) -> None:
        self.arm, self.gpu = arm, gpu
        wanted, _ = arm.counters("")
        command = [sys.executable, str(HERE / "model_speed.py"), "--worker"]
        command += [json.dumps([args.model, wanted])]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (read after the process)
        self.samples: dict[str, list[float]] = {what: [] for what in WHAT}
        self.process = subprocess.Popen(
            command,
            env=arm_environment(arm, args.site, cache, gpu),
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

    def visit(self) -> None:
        """Measure once."""
        for what, values in self.ask("visit").items():
            self.samples[what] += values

    def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


def run_block(
    processes: list[Process], rounds: int, done: list[dict[str, Any]]
) -> None:
    """Measure the processes of one block, forth and back."""
    before = _gate.gpu_state()
    for index in range(rounds):
        for process in processes if index % 2 == 0 else reversed(processes):
            process.visit()
    entry: dict[str, Any] = {"gpu": processes[0].gpu, "before": before, "starts": []}
    for process in processes:
        entry["starts"].append(
            {
                "arm": process.arm.name,
                "samples_ms": process.samples,
                "counters": process.ask("end"),
            }
        )
    entry["after"] = _gate.gpu_state()
    done.append(entry)


def run_gpu(
    gpu: str | None,
    blocks: int,
    arms: list[Arm],
    args: argparse.Namespace,
    cache: Path,
    done: list[dict[str, Any]],
    failed: list[str],
) -> None:
    """Run some blocks on one GPU, in waves of blocks whose processes start together."""
    longest = 0.0
    while blocks and not failed:
        begun = time.monotonic()
        if begun + longest > args.deadline:
            return
        wave = min(blocks, args.wave)
        blocks -= wave
        group = [
            [Process(arm, args, cache, gpu) for arm in [*arms, arms[0]]]
            for _ in range(wave)
        ]
        timer = threading.Timer(
            max(1.0, args.deadline + args.grace_s - begun),
            lambda g: [p.kill() for block in g for p in block],
            (group,),
        )
        timer.start()
        try:
            for block in group:
                for process in block:
                    process.read()
            for block in group:
                run_block(block, args.rounds, done)
        except (RuntimeError, OSError, ValueError) as error:
            failed.append(str(error))
        finally:
            timer.cancel()
            for block in group:
                for process in block:
                    process.kill()
        longest = max(longest, time.monotonic() - begun)
        print(
            f"GPU {gpu}: {len(done)} blocks, {longest:.0f} s a wave",
            file=sys.stderr,
            flush=True,
        )


def interval(values: list[float], table: dict[int, float]) -> tuple[float, float]:
    """Student's t interval of the mean of at least two values."""
    half = table[max(df for df in table if df < len(values))]
    half *= statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def judge(
    blocks: list[dict[str, Any]], claims: list[tuple[str, str, float]]
) -> dict[str, Any]:
    """Turn blocks into ratios and verdicts.

    Args:
        blocks: What `run_block` appended, at least two.
        claims: Arm, what is timed, margin.

    Returns:
        ``ratios`` by arm and kind of time (time over the base's, 95 %), ``control``
        (99 %), ``claims`` with a verdict each, and ``verdict``.
    """
    logs: dict[tuple[str, str], list[float]] = {}
    control: dict[str, list[float]] = {}
    for block in blocks:
        starts = block["starts"]
        for what in starts[0]["samples_ms"]:
            times = [statistics.median(s["samples_ms"][what]) for s in starts]
            control.setdefault(what, []).append(math.log(times[-1] / times[0]))
            for start, own in zip(starts[1:-1], times[1:-1], strict=True):
                key = (start["arm"], what)
                logs.setdefault(key, []).append(math.log(own / times[0]))
    found: dict[str, Any] = {"ratios": {}, "control": {}, "claims": []}
    for (arm, what), values in logs.items():
        low, high = interval(values, _T95)
        found["ratios"][f"{arm}, {what}"] = [math.exp(low), math.exp(high)]
    for what, values in control.items():
        low, high = interval(values, _gate._T99)
        found["control"][what] = [math.exp(low), math.exp(high)]
    verdicts = []
    for arm, what, margin in claims:
        low, high = (math.log(x) for x in found["ratios"][f"{arm}, {what}"])
        c_low, c_high = (math.log(x) for x in found["control"][what])
        verdict = _gate.judge(low, high, math.log(1 - margin), at_least=False)
        if not c_low <= 0 <= c_high:
            verdict = "invalid"
        elif c_high - c_low > 2 * abs(margin) or len(blocks) < MINIMUM_BLOCKS:
            verdict = "insufficient-evidence"
        verdicts.append(verdict)
        found["claims"].append(
            {"arm": arm, "what": what, "margin": margin, "verdict": verdict}
        )
    found["verdict"] = _gate.worst(verdicts) if verdicts else "insufficient-evidence"
    return found


def unit_body(args: argparse.Namespace) -> dict[str, Any]:
    """Be one unit of the gate engine: one block; see :func:`_gate.unit`.

    The base has two processes, A and A', which take turns as A, A', A', A: its control
    compares the first and fourth of every four visits with the second and third, and so
    one process with the other.
    """
    base, *others = engine_arms(args)
    args.site = None
    began = time.monotonic()
    processes = [Process(arm, args, args.cache, None) for arm in (base, *others, base)]
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
                for what, taken in process.ask("visit").items():
                    # The samples of a visit are one figure: what alternates are visits.
                    values[what][process.arm.name].append(statistics.median(taken))
        engagement = {}
        for process in processes[:-1]:
            after = process.ask("end")["after"]
            wanted, _ = process.arm.counters("")
            if wanted:
                engagement[process.arm.name] = {
                    "expected": len(wanted),
                    "counted": sum(bool(after.get(name)) for name in wanted),
                }
    except RuntimeError as error:
        raise _gate.Stop("invalid", str(error)) from None
    finally:
        for process in processes:
            process.kill()
    spent = {"started": ready - began, "measured": time.monotonic() - ready}
    return {
        "samples": {
            "cells": {what: {"order": order, "values": values[what]} for what in WHAT}
        },
        "engagement": engagement,
        "extra": {"seconds": {name: round(s, 1) for name, s in spent.items()}},
    }


def body(args: argparse.Namespace, document: dict[str, Any]) -> str:
    """Fill the document; see :func:`_gate.run`."""
    arms = parse_arms(args)
    claims = []
    for text in args.claim:
        name, what, margin = text.split(":")
        if what not in WHAT or name not in [arm.name for arm in arms[1:]]:
            raise _gate.Stop("invalid", f"--claim {text}: no such arm, or no such time")
        claims.append((name, what, float(margin)))
    document["arms"] = {arm.name: describe(arm) for arm in arms}
    document["scripts"]["tiny_glm.py"] = _gate.digest(HERE / "tiny_glm.py")
    document["model"] = args.model
    document["schedule"] = {
        "blocks": args.blocks,
        "order": [arm.name for arm in arms] + [arms[0].name],
        "rounds": args.rounds,
    }
    document["rule"] = {
        "statistic": "t interval of the paired log-ratio",
        "confidence": 0.95,
        "control_confidence": 0.99,
        "minimum_blocks": MINIMUM_BLOCKS,
        "claims": [list(claim) for claim in claims],
    }
    document["blocks"] = done = []
    failed: list[str] = []
    args.deadline = time.monotonic() + args.budget_s
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        for arm in arms:
            build(arm, args.site, work)
        cache = args.cache or work / "cache"
        threads = []
        for i, gpu in enumerate(args.gpus):
            share = len(range(i, args.blocks, len(args.gpus)))
            arguments = (gpu, share, arms, args, cache, done, failed)
            threads.append(threading.Thread(target=run_gpu, args=arguments))
            threads[-1].start()
        for thread in threads:
            thread.join()
    if failed:
        document["reasons"] += [f"a process failed: {text}" for text in failed]
        if len(done) < 2:
            return "invalid"
    if len(done) < 2:
        document["reasons"].append(f"{len(done)} blocks: no time for more")
        return "insufficient-evidence"
    document["result"] = found = judge(done, claims)
    for name, (low, high) in found["ratios"].items():
        document["reasons"].append(
            f"{name}: {low:.4f} to {high:.4f} of the base's time (95 %)"
        )
    for what, (low, high) in found["control"].items():
        document["reasons"].append(f"A/A {what}: {low:.4f} to {high:.4f} (99 %)")
    for claim in found["claims"]:
        document["reasons"].append(
            f"{claim['arm']}, {claim['what']}, margin {claim['margin']:+.3f}: "
            f"{claim['verdict']}"
        )
    for block in done:
        for arm, start in zip([*arms, arms[0]], block["starts"], strict=True):
            counted = start["counters"]
            # Forks are counted at capture, launches at every prefill: one that was
            # above zero before the visits, or grew in them, has engaged.
            for name in arm.counters("")[0]:
                if not counted["after"].get(name):
                    document["reasons"].append(f"{arm.name}: {name} never counted")
                    return "not-tested"
    states = [block[when] for block in done for when in ("before", "after")]
    if any(_gate.throttled(state) for state in states):
        document["reasons"].append("the GPU was throttled")
        return "invalid"
    verdict: str = found["verdict"]
    if len(done) < args.blocks and verdict == "qualified":
        document["reasons"].append(f"{len(done)} of {args.blocks} declared blocks")
        return "insufficient-evidence"
    return verdict


def main() -> int:
    """Parse the command line and run the gate, or one of its processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--site", type=Path, help="unpacked vLLM; not with --unit")
    parser.add_argument("--arm", action="append", default=[])
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--claim", action="append", default=[])
    parser.add_argument("--model", type=shlex.split, default=[], metavar="OPTIONS")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--wave", type=int, default=1, help="blocks started together")
    parser.add_argument("--rounds", type=int, default=6, help="visits of a process")
    parser.add_argument(
        "--gpus", type=lambda text: text.split(","), default=[None], help="such as 0,1"
    )
    parser.add_argument("--cache", type=Path, help="of compiled kernels, kept")
    parser.add_argument("--budget-s", type=float, default=3600, help="s in all")
    parser.add_argument("--grace-s", type=float, default=0, help="s beyond that")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--unit", action="store_true", help="one unit of the engine, which has the arms"
    )
    args = parser.parse_args()
    args.forbid = []
    if args.unit:
        if args.rounds % 4:
            parser.error("--rounds: a multiple of 4, for the base's two processes")
        return _gate.unit(lambda: unit_body(args))
    if args.site is None:
        parser.error("--site is needed")
    args.site = args.site.resolve()
    return _gate.run(
        "model-speed", __file__, args.json, lambda document: body(args, document)
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        raise SystemExit(worker(*json.loads(sys.argv[2])))
    raise SystemExit(main())
