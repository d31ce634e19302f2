"""Evidence as a runner would write it, for tests of the decision rule."""

import random
from dataclasses import replace

from stackctl.gates.evidence import Arm, Evidence, Unit
from stackctl.gates.rule.model import Claim, Rule
from stackctl.gates.rule.schedule import schedule

BASE = Arm("b" * 40, None, "base")
ON = Arm("c" * 40, "d" * 64, "composed", {"FEATURE": "1"})
ARMS = {"base": BASE, "on": ON}
HOST = {"load_before": 0.0, "load_mean": 0.0, "load_after": 0.0, "cpus": 16}
STATE = {"reasons": 0, "utilization": 0, "memory_used_mib": 4}
GPU = ({"uuid": "GPU-1", "before": STATE, "after": STATE, "throttled": False},)

KERNEL = Rule(statistic="paired-log-ratio")
GAIN = Claim(name="gain", cell="c", arm="on", against="base", margin=0.08)
SERVING = Rule(statistic="paired-log-ratio", blocks=True, engaged=("on",))
LOSS = Claim(
    name="loss",
    cell="c8:steps_per_s",
    arm="on",
    against="base",
    better="higher",
    margin=-0.02,
)
ACCURACY = Rule(
    statistic="paired-difference", blocks=True, pairs=1, looks=1, engaged=("on",)
)
RIGHT = Claim(name="right", arm="on", against="base", better="higher", margin=-0.05)


def unit(number, samples, **changed):
    """A finished unit."""
    answer = {"schema": 1, "samples": samples}
    answer |= {k: changed.pop(k) for k in ("engagement", "stop") if k in changed}
    return replace(Unit(number, 0, 1000, answer, HOST, GPU), **changed)


def evidence(kind, rule, units, arms=None, **changed):
    """Evidence with the schedule that the rule gives."""
    arms = ARMS if arms is None else arms
    names = [name for name in ("base", *sorted(arms)) if name in arms]
    count = max(1, len(units)) if rule.statistic in ("counts", "all-equal") else 1
    plan = schedule(rule, list(dict.fromkeys(names)), 7, count)
    return replace(Evidence("a-gate", kind, arms, plan, tuple(units)), **changed)


def visits(base, on, rounds=2):
    """The visits of one process: base, on, on, base, ..."""
    order, values = [], {"base": [], "on": []}
    for _ in range(rounds):
        for arm in ("base", "on", "on", "base"):
            order.append(arm)
            values[arm].append(base() if arm == "base" else on())
    return {"order": order, "values": values}


def kernel(ratio, pairs=9, noise=0.004, seed=1, rounds=2, **changed):
    """Evidence of a kernel gate: the arm takes `ratio` times as long."""
    draw = random.Random(seed)
    units = [
        unit(
            number,
            {
                "cells": {
                    "c": visits(
                        lambda: 100 * (1 + draw.gauss(0, noise)),
                        lambda: 100 * ratio * (1 + draw.gauss(0, noise)),
                        rounds,
                    )
                }
            },
        )
        for number in range(pairs)
    ]
    return evidence("kernel", KERNEL, units, **changed)


def engagement(arm, **seen):
    """What a unit saw of features: by default of one, which is on in `on` only."""
    seen = seen or {"fork": int(arm == "on")}
    return {
        arm: {
            "expected": len(seen) if arm == "on" else 0,
            "counted": sum(bool(number) for number in seen.values()),
            "features": [
                {"feature": name, "by": "log", "seen": number}
                for name, number in seen.items()
            ],
        }
    }


def serving(ratio, blocks=9, noise=0.004, seed=1, rule=SERVING, **cell):
    """Evidence of a serving gate: the arm has `ratio` times the rate."""
    draw = random.Random(seed)
    plan = schedule(rule, ["base", "on"], 7)
    units = []
    for slot in plan.slots[: 3 * blocks]:
        rate = 50 * (ratio if slot.arms == ("on",) else 1) * (1 + draw.gauss(0, noise))
        found = {"steps_per_s": rate, "requests": 20, "problems": []} | cell
        shown = engagement(slot.arms[0])
        units.append(unit(slot.unit, {"cells": {"c8": found}}, engagement=shown))
    return evidence("serving", rule, units)


def answers(items, wrong=(), result="fail", **item):
    """Answers to `items` items, those in `wrong` with another result."""
    return {
        "items": [
            {"id": f"i{n}", "result": result if n in wrong else "exact", **item}
            for n in range(items)
        ]
    }


def accuracy(items, on=(), base=(), again=None, result="fail"):
    """Evidence of an accuracy gate: the items that each arm gets wrong."""
    again = base if again is None else again
    runs = [answers(items, base), answers(items, on, result), answers(items, again)]
    return asked(runs)


def asked(runs):
    """Evidence of an accuracy gate from the samples of base, on, base."""
    units = [
        unit(n, samples, engagement=engagement("on" if n == 1 else "base"))
        for n, samples in enumerate(runs)
    ]
    return evidence("accuracy", ACCURACY, units)
