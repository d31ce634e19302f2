# SPDX-License-Identifier: Apache-2.0
"""Runs of gates as plain data, for what reads them: evidence, rules, documents."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

TREES = {"base": "1" * 40, "on": "2" * 40}
GPU = "GPU-01234567-89ab-cdef-0123-456789abcdef"

RULE: dict[str, Any] = {"statistic": "paired-log-ratio", "pairs": 9, "looks": 2}
CLAIM: dict[str, Any] = {
    "name": "gain",
    "cell": "kpool4/4080",
    "arm": "on",
    "against": "base",
    "margin": 0.08,
}


def kernel_unit(unit: int, ratio: float, noise: float, seed: int) -> dict[str, Any]:
    """One process: both arms, ABBA, microseconds."""
    draw = Random(f"{seed}/{unit}")
    base = [round(100 * draw.gauss(1, noise), 3) for _ in range(4)]
    on = [round(100 * ratio * draw.gauss(1, noise), 3) for _ in range(4)]
    state = {"sm_mhz": 1980, "temperature_c": 41, "power_w": 210.5, "reasons": 0}
    state |= {"utilization": 0, "memory_used_mib": 4}
    return {
        "unit": unit,
        "exit": 0,
        "ns": 1_500_000_000 + unit,
        "answer": {
            "schema": 1,
            "samples": {
                "cells": {
                    "kpool4/4080": {
                        "order": ["base", "on", "on", "base"] * 2,
                        "values": {"base": base, "on": on},
                    }
                }
            },
            "notes": ["warm-up of 3 rounds"],
        },
        "host": {
            "load_before": 0.1,
            "load_peak": 0.4,
            "load_mean": 0.2,
            "load_after": 0.1,
            "cpus": 16,
            "loadavg": 0.5,
        },
        "gpus": [{"uuid": GPU, "before": state, "after": state, "throttled": False}],
        "problems": [],
    }


def planned(rule: Mapping[str, Any], arms: list[str], units: int = 1) -> dict[str, Any]:
    """The schedule that the rule makes."""
    from stackctl.gates.rule.model import Rule
    from stackctl.gates.rule.schedule import schedule

    return schedule(Rule(**rule), arms, 0, units).document()


def kernel_evidence(
    ratio: float = 0.8,
    noise: float = 0.01,
    pairs: int = 9,
    seed: int = 0,
    gate: str = "kpool-speed",
    **changes: Any,
) -> dict[str, Any]:
    """Evidence of a kernel gate: `on` takes `ratio` of the time of `base`."""
    return {
        "gate": gate,
        "kind": "kernel",
        "arms": {
            "base": {
                "tree": TREES["base"],
                "composition": None,
                "definition": "base",
                "env": {},
            },
            "on": {
                "tree": TREES["on"],
                "composition": "c" * 64,
                "definition": "composed",
                "env": {"VLLM_KPOOL_PARALLEL": "1"},
            },
        },
        "schedule": planned(RULE, ["base", "on"]),
        "units": [kernel_unit(n, ratio, noise, seed) for n in range(pairs)],
        "scope": {
            "hardware": {
                "gpus": [{"uuid": GPU, "name": "NVIDIA H200", "driver": "580.159.04"}]
            },
            "host": {"cpu": "AMD EPYC 9654 96-Core Processor", "cpus": 16},
            "versions": {"python": "3.12.3", "torch": "2.11.0+cu130"},
        },
        "inputs": {
            "base": {
                "identity": f"vllm==0.33.0@sha256:{'f' * 64}",
                "tree": TREES["base"],
                "commit": "3" * 40,
            },
            "files": [
                {"role": "gate", "path": f"ci/gates/{gate}.toml", "sha256": "a" * 64},
                {"role": "script", "path": "ci/gates/kpool.py", "sha256": "b" * 64},
            ],
            "image": None,
            "model": None,
        },
        "problems": [],
        "limitations": ["one H200; no other card was measured"],
        "missing": [],
    } | changes


def document(
    evidence: Mapping[str, Any],
    rule: Mapping[str, Any] = RULE,
    claims: Sequence[Mapping[str, Any]] = (CLAIM,),
    **changes: Any,
) -> dict[str, Any]:
    """What a run hands to `receipt.write`: filtered evidence and its decision."""
    from stackctl.gates.evidence import from_document
    from stackctl.gates.receipt import safe_evidence
    from stackctl.gates.rule.decide import decide
    from stackctl.gates.rule.model import Claim, Rule

    told = Rule(**rule)
    stated = [Claim(**claim) for claim in claims]
    kept = safe_evidence(
        from_document(evidence), [claim.document() for claim in stated]
    )
    return {
        "evidence": kept.document(),
        "rule": told.document(),
        "claims": [claim.document() for claim in stated],
        "decision": decide(told, stated, kept).document(),
        "argv": ["{python}", "ci/gates/kpool.py", "--tree", "{tree:on}"],
        "env": {"CUDA_VISIBLE_DEVICES": "0", "LC_ALL": "C"},
        "set": ["parallel-prefill"],
        "started": "2026-11-29T22:05:00Z",
    } | changes
