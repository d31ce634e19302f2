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

Arms of a configuration run side by side on the GPU (results do not depend on it), the
reference first and alone where nothing is compiled yet. A configuration whose
reference does not run is not tested; what the others answer is then not looked at.
Every arm answers each prompt twice, and prompts on which the reference does not repeat
itself are left out of the comparison and listed.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gates"))

import _gate  # noqa: E402


@dataclass
class Arm:
    """One side: a name, an overlay folder (or none) and environment variables."""

    name: str
    overlay: Path | None = None
    variables: dict[str, str] = field(default_factory=dict)
    counters: list[str] = field(default_factory=list)
    root: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Arm:
        """Read ``NAME[=OVERLAY][,VARIABLE=VALUE]...``."""
        head, *variables = text.split(",")
        name, _, overlay = head.partition("=")
        pairs = dict(v.split("=", 1) for v in variables)
        return cls(name, Path(overlay) if overlay else None, pairs)


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


def start(
    arm: Arm, site: Path, cache: Path, out: Path, options: list[str]
) -> subprocess.Popen[str]:
    """Start one arm on one configuration."""
    drop = ("PYTHONPATH", "VLLM_GLM53_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env |= {
        "PYTHONPATH": f"{arm.root}:{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CACHE_ROOT": str(cache / "vllm"),
        "TRITON_CACHE_DIR": str(cache / "triton"),
    }
    env.setdefault("CUDA_HOME", "/usr/local/cuda")
    env |= arm.variables
    command = [sys.executable, str(HERE / "tiny_glm.py"), "--out", str(out), *options]
    for counter in arm.counters:
        command += ["--counter", counter]
    log = out.with_suffix(".log").open("w")
    return subprocess.Popen(
        command, env=env, stdout=log, stderr=subprocess.STDOUT, text=True
    )


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


def run_config(
    name: str, options: list[str], arms: list[Arm], args: argparse.Namespace, work: Path
) -> dict[str, Any]:
    """All arms on one configuration."""
    outs = {arm.name: work / f"{name}-{arm.name}.json" for arm in arms}
    begun = time.monotonic()
    limit = min(args.timeout, max(1.0, args.deadline - begun))

    def launch(arm: Arm) -> subprocess.Popen[str]:
        return start(arm, args.site, work / "cache", outs[arm.name], options)

    running = {}
    if args.warm_first:
        running[arms[0].name] = launch(arms[0])
        try:
            running[arms[0].name].wait(limit)
        except subprocess.TimeoutExpired:
            running[arms[0].name].kill()
    queue = [arm for arm in arms if arm.name not in running]
    while queue or any(p.poll() is None for p in running.values()):
        if time.monotonic() - begun > limit:
            for process in running.values():
                if process.poll() is None:
                    process.kill()
                    process.wait()
            break
        busy = sum(p.poll() is None for p in running.values())
        if queue and busy < args.parallel:
            arm = queue.pop(0)
            running[arm.name] = launch(arm)
        time.sleep(0.2)
    result: dict[str, Any] = {"options": options, "arms": {}}
    answers = {}
    for arm in arms:
        entry: dict[str, Any] = {}
        path = outs[arm.name]
        if path.exists():
            answers[arm.name] = json.loads(path.read_text())
            entry = {k: v for k, v in answers[arm.name].items() if k != "answers"}
        else:
            entry["failed"] = tail(path.with_suffix(".log"))
        result["arms"][arm.name] = entry
    reference = answers.get(arms[0].name)
    result["seconds"] = time.monotonic() - begun
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
    verdicts = []
    for arm in arms:
        entry = result["arms"][arm.name]
        if arm.name not in answers:
            entry["verdict"] = "invalid"
        else:
            entry["difference"] = first_difference(
                reference["answers"], answers[arm.name]["answers"], prompts
            )
            idle = [c for c in arm.counters if not entry["counters"].get(c)]
            entry["verdict"] = (
                "rejected"
                if entry["difference"]
                else "not-tested"
                if idle
                else "qualified"
            )
            if idle:
                entry["not_engaged"] = idle
        verdicts.append(entry["verdict"])
    result["verdict"] = _gate.worst(verdicts)
    return result


def body(args: argparse.Namespace, document: dict[str, Any]) -> str:
    """Fill the document; see :func:`_gate.run`."""
    if not (args.site / "vllm").is_dir():
        raise _gate.Stop("not-tested", "the site folder has no vllm: setup_device.py")
    arms = [Arm.parse(text) for text in args.arm]
    if len(arms) < 2 or arms[0].overlay is not None:
        raise _gate.Stop(
            "invalid", "name the base first, without an overlay, then arms"
        )
    for text in args.expect:
        name, _, counter = text.partition(":")
        found = [arm for arm in arms if arm.name == name]
        if not found:
            raise _gate.Stop("invalid", f"--expect {text}: there is no arm {name}")
        found[0].counters.append(counter)
    args.deadline = time.monotonic() + args.budget_s
    document["arms"] = {
        arm.name: {
            "variables": arm.variables,
            "files": {
                str(p.relative_to(arm.overlay)): _gate.digest(p)
                for p in sorted((arm.overlay / "vllm").rglob("*.py"))
            }
            if arm.overlay
            else {},
        }
        for arm in arms
    }
    document["scripts"]["tiny_glm.py"] = _gate.digest(HERE / "tiny_glm.py")
    document["configs"] = configs = {}
    # A process that was stopped may still be writing to the cache.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        for arm in arms:
            build(arm, args.site, work)
        for text in args.config:
            name, _, options = text.partition(":")
            left = args.deadline - time.monotonic()
            if left < args.least_s:
                configs[name] = {"verdict": "not-tested", "reason": "out of time"}
                continue
            configs[name] = run_config(name, shlex.split(options), arms, args, work)
            if args.partial:
                args.partial.write_text(json.dumps(document))
            line = {
                a: e["verdict"]
                for a, e in configs[name].get("arms", {}).items()
                if "verdict" in e
            }
            print(f"{name}: {configs[name]['verdict']} {line}", file=sys.stderr)
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
    parser.add_argument("--site", type=Path, required=True)
    parser.add_argument("--arm", action="append", required=True)
    parser.add_argument("--expect", action="append", default=[])
    parser.add_argument("--config", action="append", required=True)
    parser.add_argument("--parallel", type=int, default=4, help="arms side by side")
    parser.add_argument(
        "--warm-first", action="store_true", help="reference alone first"
    )
    parser.add_argument(
        "--timeout", type=float, default=240, help="s per configuration"
    )
    parser.add_argument("--budget-s", type=float, default=3600, help="s in all")
    parser.add_argument("--least-s", type=float, default=40, help="s to start a config")
    parser.add_argument("--partial", type=Path, help="written after each configuration")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    args.site = args.site.resolve()
    return _gate.run(
        "model-parity", __file__, args.json, lambda document: body(args, document)
    )


if __name__ == "__main__":
    raise SystemExit(main())
