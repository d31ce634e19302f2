"""Gate model-parity: the same tokens and log-probabilities from every arm.

An arm is a copy of the unpacked site in which some files are replaced, with some
environment variables set, and runs as a process of its own:

    python3 ci/gpu/model_arms.py --site /tmp/site --json \
        --arm base \
        --arm set=overlay/parallel-prefill,VLLM_GLM53_KPOOL_PARALLEL_PREFILL=1 \
        --arm off=overlay/parallel-prefill,VLLM_GLM53_KPOOL_PARALLEL_PREFILL=0 \
        --expect set:vllm.some.module:attribute \
        --config eager:--eager --config graphs:

An overlay is a folder with a ``vllm/`` of changed files. The first arm is the
reference: the base as it was unpacked. ``--expect ARM:MODULE:ATTRIBUTE`` names a
counter that has to be above zero, else the arm never engaged and is not tested.

Configurations are taken in their order, each with its reference first, some processes
side by side, spread over ``--gpus`` (results do not depend on that). A configuration
whose reference does not run is not tested, and its other arms are not started. A
process that ends without an answer is started once more, with nothing beside it. Every
arm answers each prompt twice, and prompts on which the reference does not repeat
itself are left out of the comparison and listed.

``--expect ARM@CONFIG:MODULE:ATTRIBUTE`` asks for the counter only in configurations
whose name matches the pattern, ``--forbid`` asks that it stays at zero there.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shlex
import shutil
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

import _gate  # noqa: E402

NO_ANSWER: dict[str, Any] = {"tokens": [], "logprobs": []}
# What a process's seconds are made of, beside all of them.
PARTS = ("import_s", "start_s", "answer_s")


@dataclass
class Arm:
    """One side: a name, an overlay folder (or none) and environment variables."""

    name: str
    overlay: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    expected: list[tuple[str, str]] = field(default_factory=list)
    forbidden: list[tuple[str, str]] = field(default_factory=list)
    root: Path | None = None

    def counters(self, config: str) -> tuple[list[str], list[str]]:
        """Counters that must count in a configuration, and those that must not."""
        wanted, unwanted = (
            [name for pattern, name in asked if fnmatch.fnmatch(config, pattern)]
            for asked in (self.expected, self.forbidden)
        )
        return wanted, unwanted

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Read ``NAME[=OVERLAY][,VARIABLE=VALUE]...``."""
        head, *variables = text.split(",")
        name, _, overlay = head.partition("=")
        pairs = dict(v.split("=", 1) for v in variables)
        return cls(name, Path(overlay) if overlay else None, pairs)


@dataclass
class Job:
    """One arm on one configuration: a process."""

    config: str
    options: list[str]
    arm: Arm
    out: Path
    process: subprocess.Popen[str] | None = None
    gpu: str | None = None
    begun: float = 0.0
    seconds: float = 0.0
    why: str | None = None
    failed: str | None = None

    def answer(self) -> dict[str, Any] | None:
        """What the process wrote, or None."""
        try:
            read: dict[str, Any] = json.loads(self.out.read_text())
        except (OSError, ValueError):
            return None
        return read


def build(arm: Arm, site: Path, work: Path) -> None:
    """Make the arm's ``vllm``: links into the site, changed files copied over."""
    arm.root = work / arm.name
    if arm.overlay is None:
        arm.root = site
        return
    changed = {
        p.relative_to(arm.overlay): p
        for p in (arm.overlay / "vllm").rglob("*")
        if p.is_file()
    }
    if not changed:
        raise _gate.Stop("invalid", f"{arm.name}: no files under {arm.overlay}/vllm")
    for folder, folders, files in os.walk(site / "vllm"):
        folders[:] = [f for f in folders if f != "__pycache__"]
        here = arm.root / Path(folder).relative_to(site)
        here.mkdir(parents=True)
        for name in files:
            (here / name).symlink_to(Path(folder) / name)
    for relative, source in changed.items():
        target = arm.root / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target)


def arm_environment(
    arm: Arm, site: Path | None, cache: Path | None, gpu: str | None
) -> dict[str, str]:
    """The environment of an arm's processes; without a cache, the one that is set."""
    drop = ("PYTHONPATH", "VLLM_GLM53_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env |= {
        "PYTHONPATH": os.pathsep.join(
            dict.fromkeys(str(folder) for folder in (arm.root, site) if folder)
        ),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }
    if cache is not None:
        env["VLLM_CACHE_ROOT"] = str(cache / "vllm")
        env["TRITON_CACHE_DIR"] = str(cache / "triton")
        env["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
    # vLLM keeps what it learnt of a model's module by the module's name: arms whose
    # modules differ would take it from each other at every start.
    if shared := env.get("VLLM_CACHE_ROOT"):
        env.setdefault("DG_JIT_CACHE_DIR", str(Path(shared) / "deep_gemm"))
        env.setdefault("TILELANG_CACHE_DIR", str(Path(shared) / "tilelang"))
        env["VLLM_CACHE_ROOT"] = str(Path(shared) / arm.name)
    env.setdefault("CUDA_HOME", "/usr/local/cuda")
    if gpu is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpu
    return env | arm.variables


def start(
    job: Job, site: Path | None, cache: Path | None, gpu: str | None
) -> subprocess.Popen[str]:
    """Start one arm on one configuration."""
    command = [sys.executable, str(HERE / "tiny_glm.py"), "--out", str(job.out)]
    command += job.options
    wanted, unwanted = job.arm.counters(job.config)
    for counter in wanted + unwanted:
        command += ["--counter", counter]
    log = job.out.with_suffix(".log").open("w")
    return subprocess.Popen(
        command,
        env=arm_environment(job.arm, site, cache, gpu),
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    )


def parse_arms(args: argparse.Namespace) -> list[Arm]:
    """Read the arms of a command line with what is expected of each.

    Raises:
        _gate.Stop: The base is not first, or a counter is of no arm.
    """
    if not (args.site / "vllm").is_dir():
        raise _gate.Stop("not-tested", "the site folder has no vllm: setup_device.py")
    arms = [Arm.parse(text) for text in args.arm]
    if len(arms) < 2 or arms[0].overlay is not None:
        raise _gate.Stop(
            "invalid", "name the base first, without an overlay, then arms"
        )
    ask(arms, args)
    return arms


def ask(arms: list[Arm], args: argparse.Namespace) -> None:
    """Give each arm what ``--expect`` and ``--forbid`` ask of it.

    Raises:
        _gate.Stop: One names no arm.
    """
    for option, texts in (("expect", args.expect), ("forbid", args.forbid)):
        for text in texts:
            name, _, counter = text.partition(":")
            name, _, pattern = name.partition("@")
            found = [arm for arm in arms if arm.name == name]
            if not found:
                raise _gate.Stop(
                    "invalid", f"--{option} {text}: there is no arm {name}"
                )
            asked = found[0].expected if option == "expect" else found[0].forbidden
            asked.append((pattern or "*", counter))


def engine_arms(args: argparse.Namespace) -> list[Arm]:
    """The arms of the gate engine's schedule: its folders and its variables.

    Raises:
        _gate.Stop: There is no site, or a counter is of no arm.
    """
    told = json.loads(os.environ["STACKCTL_GATE_ARMS"])
    arms = []
    for name, arm in told.items():
        root = Path(arm["site"])
        if not (root / "vllm").is_dir():
            raise _gate.Stop("not-tested", "no installed vLLM was named (--site)")
        arms.append(Arm(name, None, dict(arm["env"]), root=root))
    arms.sort(key=lambda arm: arm.name != "base")
    ask(arms, args)
    return arms


def describe(arm: Arm) -> dict[str, Any]:
    """What an arm is made of: its variables and the digests of its files."""
    files: dict[str, str] = {}
    if arm.overlay is not None:
        for path in sorted((arm.overlay / "vllm").rglob("*.py")):
            files[path.relative_to(arm.overlay).as_posix()] = _gate.digest(path)
    return {"variables": arm.variables, "files": files}


def first_difference(
    a: list[dict[str, Any]], b: list[dict[str, Any]], prompts: list[int]
) -> str | None:
    """Where two answers part on some prompts, or None where they are the same."""
    for prompt in prompts:
        one, other = a[prompt], b[prompt]
        for what in ("tokens", "logprobs"):
            if one[what] != other[what]:
                pairs = enumerate(zip(one[what], other[what], strict=False))
                step = next((i for i, (x, y) in pairs if x != y), "length")
                return f"prompt {prompt}, step {step}, {what}"
    return None


def tail(path: Path) -> str:
    """Last lines of a log, without paths of this machine's site."""
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    return "\n".join(lines[-12:])[-1500:]


def last_line(text: str) -> str:
    """The last line of a log, which says what the matter was."""
    return text.strip().rpartition("\n")[2][:200]


def run_jobs(jobs: list[Job], args: argparse.Namespace, work: Path) -> None:
    """Run jobs in their order, some side by side on each GPU.

    A job of a configuration whose reference (its first job) failed is left out.
    """
    slots: list[str | None] = [g for g in args.gpus for _ in range(args.parallel)]
    cache = args.cache or (None if args.unit else work / "cache")
    queue, running = list(jobs), []
    reference = {job.config: job for job in reversed(jobs)}
    while queue or running:
        now = time.monotonic()
        for job in list(running):
            assert job.process is not None
            if job.process.poll() is None:
                late = now - job.begun > args.timeout
                if not late and now < args.deadline:
                    continue
                job.process.kill()
                job.process.wait()
                job.why = f"stopped after {now - job.begun:.0f} s: " + (
                    "its limit" if late else "no time left"
                )
            job.seconds = time.monotonic() - job.begun
            running.remove(job)
            slots.append(job.gpu)
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
            args.landed(job)
        for job in list(queue):
            first = reference[job.config]
            if job is not first and first in running:
                continue
            if job is not first and first not in queue and first.answer() is None:
                job.why = "the reference did not run"
            elif now + args.least_s > args.deadline:
                job.why = "no time left"
            if job.why:
                queue.remove(job)
            elif job.failed and running:
                continue
            elif slots and (job is first or first not in queue):
                queue.remove(job)
                # The GPU with the most free places.
                job.gpu = max(slots, key=slots.count)
                slots.remove(job.gpu)
                job.begun = now
                job.process = start(job, args.site, cache, job.gpu)
                running.append(job)
        time.sleep(0.1)


def compare(jobs: list[Job]) -> dict[str, Any]:
    """Judge one configuration by its jobs, the reference first."""
    result: dict[str, Any] = {"options": jobs[0].options, "arms": {}}
    answers = {}
    for job in jobs:
        entry: dict[str, Any] = {"seconds": job.seconds}
        answer = job.answer()
        if answer is not None:
            answers[job.arm.name] = answer
            entry |= {k: v for k, v in answer.items() if k != "answers"}
        else:
            entry["failed"] = job.why or tail(job.out.with_suffix(".log"))
        result["arms"][job.arm.name] = entry
    reference = answers.get(jobs[0].arm.name)
    if reference is None:
        result["verdict"] = "not-tested"
        result["reason"] = "the reference did not run"
        return result
    # Where the base does not repeat itself, no other arm can be asked to.
    prompts = [i for i, same in enumerate(reference["repeats"]) if same]
    result["prompts_compared"] = prompts
    result["prompts_not_repeated_by_the_reference"] = [
        i for i, same in enumerate(reference["repeats"]) if not same
    ]
    if not prompts:
        result["verdict"] = "not-tested"
        result["reason"] = "the reference repeats none of its answers"
        return result
    # A length summary keeps the document small; equality was judged on everything.
    result["reference_tokens"] = [a["tokens"][:12] for a in reference["answers"]]
    for job in jobs:
        entry = result["arms"][job.arm.name]
        if job.arm.name not in answers:
            entry["verdict"] = "not-tested" if job.why else "invalid"
            continue
        entry["difference"] = first_difference(
            reference["answers"], answers[job.arm.name]["answers"], prompts
        )
        wanted, unwanted = job.arm.counters(job.config)
        idle = [c for c in wanted if not entry["counters"].get(c)]
        stray = [c for c in unwanted if entry["counters"].get(c)]
        entry["verdict"] = "qualified"
        if idle:
            entry["verdict"], entry["not_engaged"] = "not-tested", idle
        if entry["difference"] or stray:
            entry["verdict"], entry["engaged_though_off"] = "rejected", stray
    result["verdict"] = _gate.worst([e["verdict"] for e in result["arms"].values()])
    return result


def plan(arms: list[Arm], args: argparse.Namespace, work: Path) -> dict[str, list[Job]]:
    """The jobs of every configuration, the reference's first."""
    by_config = {}
    for text in args.config:
        name, _, options = text.partition(":")
        name, _, chosen = name.partition("=")
        names = chosen.split("+") if chosen else [arm.name for arm in arms]
        by_config[name] = [
            Job(name, shlex.split(options), arm, work / f"{name}-{arm.name}.json")
            for arm in arms
            if arm is arms[0] or arm.name in names
        ]
    return by_config


def unit_body(args: argparse.Namespace) -> dict[str, Any]:
    """Be the gate engine's unit; see :func:`_gate.unit`."""
    arms = engine_arms(args)
    args.deadline = time.monotonic() + args.budget_s
    args.landed, args.site = lambda job: None, None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        by_config = plan(arms, args, Path(folder))
        run_jobs(list(chain.from_iterable(by_config.values())), args, Path(folder))
        cases: list[dict[str, Any]] = []
        left_out, late = [], []
        engagement = {
            arm.name: {"expected": 0, "counted": 0} for arm in arms if arm.expected
        }
        digests: dict[str, dict[str, str]] = {}
        seconds: dict[str, dict[str, list[float]]] = {}
        for name, jobs in by_config.items():
            found = compare(jobs)
            if found["verdict"] == "not-tested" and "reason" in found:
                text = found["arms"][jobs[0].arm.name].get("failed", found["reason"])
                left_out.append(f"{name}: not tested: {text}")
                late.append(f"{name} ({last_line(text)})")
                continue
            reference = jobs[0].answer()
            assert reference is not None
            for n in found["prompts_not_repeated_by_the_reference"]:
                left_out.append(f"{name}, prompt {n}: the base does not repeat itself")
            for job in jobs:
                entry = found["arms"][job.arm.name]
                answer = job.answer()
                if job.failed is not None:
                    last = last_line(job.failed)
                    left_out.append(f"{name}, {job.arm.name}, started twice: {last}")
                if answer is None:
                    why = str(entry["failed"])
                    left_out.append(f"{name}, {job.arm.name}: {why}")
                    if job.why:
                        late.append(f"{name}, {job.arm.name} ({why})")
                        continue
                    # The base answers and the arm ends, twice: that is no equality.
                    for n in found["prompts_compared"]:
                        lost = difference(reference["answers"][n], NO_ANSWER)
                        case = f"{name}, {job.arm.name}, prompt {n}"
                        cases.append({"id": case, **lost})
                    continue
                if stray := entry.get("engaged_though_off"):
                    text = f"{name}, {job.arm.name}: counted although it is off: "
                    raise _gate.Stop("rejected", text + ", ".join(stray))
                digests.setdefault(name, {})[job.arm.name] = entry["digest"][:16]
                times = [job.seconds, *(entry.get(part, 0.0) for part in PARTS)]
                seconds.setdefault(name, {})[job.arm.name] = [
                    round(t, 1) for t in times
                ]
                wanted, _ = job.arm.counters(name)
                for counter in wanted:
                    engagement[job.arm.name]["expected"] += 1
                    counted = bool(entry["counters"].get(counter))
                    engagement[job.arm.name]["counted"] += counted
                for n in found["prompts_compared"]:
                    cases.append(
                        {
                            "id": f"{name}, {job.arm.name}, prompt {n}",
                            **difference(reference["answers"][n], answer["answers"][n]),
                        }
                    )
    answer = {
        "samples": {"cases": cases},
        "engagement": engagement,
        "notes": left_out,
        "extra": {"answers": digests, "seconds": seconds},
    }
    if late or not cases:
        # What there was is kept beside the unit, for the verdict is about the whole.
        place = os.environ.get("STACKCTL_GATE_DIR")
        if place:
            Path(place, "partial.json").write_text(json.dumps(answer, sort_keys=True))
        unequal = sum(not case["equal"] for case in cases)
        text = f"{len(cases)} prompts were compared, {unequal} differ; left out: "
        raise _gate.Stop("not-tested", text + ("; ".join(late) or "everything"))
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


def body(args: argparse.Namespace, document: dict[str, Any]) -> str:
    """Fill the document; see :func:`_gate.run`."""
    arms = parse_arms(args)
    args.deadline = time.monotonic() + args.budget_s
    document["arms"] = {arm.name: describe(arm) for arm in arms}
    document["scripts"]["tiny_glm.py"] = _gate.digest(HERE / "tiny_glm.py")
    document["configs"] = configs = {}
    # A process that was stopped may still be writing to the cache.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        for arm in arms:
            build(arm, args.site, work)
        by_config = plan(arms, args, work)

        def landed(job: Job) -> None:
            same = by_config[job.config]
            if all(j.seconds or j.why for j in same):
                configs[job.config] = compare(same)
                if args.partial:
                    args.partial.write_text(json.dumps(document))

        args.landed = landed
        run_jobs(list(chain.from_iterable(by_config.values())), args, work)
        for name, same in by_config.items():
            configs[name] = compare(same)
    verdicts = []
    for name, entry in configs.items():
        verdicts.append(entry["verdict"])
        document["reasons"].append(
            f"{name}: {entry['verdict']}"
            + (f" ({entry['reason']})" if "reason" in entry else "")
        )
    return _gate.worst(verdicts)


def main() -> int:
    """Parse the command line and run the gate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--site", type=Path, help="unpacked vLLM; not with --unit")
    parser.add_argument("--arm", action="append", default=[])
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--forbid", action="append", default=[])
    parser.add_argument(
        "--config",
        action="append",
        required=True,
        metavar="NAME[=ARM+ARM...]:OPTIONS",
        help="options of tiny_glm.py; the arms beside the reference, default all",
    )
    parser.add_argument(
        "--parallel", type=int, default=4, help="arms side by side on a GPU"
    )
    parser.add_argument(
        "--gpus", type=lambda text: text.split(","), default=[None], help="such as 0,1"
    )
    parser.add_argument("--timeout", type=float, default=240, help="s per process")
    parser.add_argument("--budget-s", type=float, default=3600, help="s in all")
    parser.add_argument(
        "--least-s", type=float, default=40, help="s to start a process"
    )
    parser.add_argument("--cache", type=Path, help="of compiled kernels, kept")
    parser.add_argument("--partial", type=Path, help="written after each configuration")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--unit", action="store_true", help="one unit of the engine, which has the arms"
    )
    args = parser.parse_args()
    if args.unit:
        return _gate.unit(lambda: unit_body(args))
    if args.site is None:
        parser.error("--site is needed")
    args.site = args.site.resolve()
    return _gate.run(
        "model-parity", __file__, args.json, lambda document: body(args, document)
    )


if __name__ == "__main__":
    raise SystemExit(main())
