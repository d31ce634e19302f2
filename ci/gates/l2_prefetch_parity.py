"""Are the outputs of a model bit-identical with and without the L2 weight prefetch?

A small random GLM-5.3-Flash (KDA, MLA, dense MLP and MoE layers, weights scaled by
fan-in) generates greedily from the same token ids: every arm eagerly and under CUDA
graphs, each time a process of its own. Tokens and log-probabilities are compared bit
for bit with the base's of the same mode.

An arm with the switch on proves itself: the prefetcher's counters are layers x windows
x steps, and a profile of decode steps, replayed ones under graphs, holds one prefetch
kernel for each of a step's launches. With one GPU nothing is reduced, so windows B and
C open at their fallback points.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))

import _unit
import l2_common
import tiny_glm

PREFIX = "VLLM_GLM53_L2_PREFETCH"
MODES = ("eager", "graphs")
LENGTHS, NEW_TOKENS, LAYERS = (37, 640, 1023, 3000), 24, 4
# Processes at once, and the seconds that one may take.
JOBS, TIMEOUT_S = 8, 300


def write_config(folder: Path) -> None:
    """Write the configuration of a small GLM-5.3-Flash to ``config.json``."""
    config = {
        "architectures": ["Glm5NextForCausalLM"],
        "model_type": "glm5_next_text",
        "torch_dtype": "bfloat16",
        "vocab_size": 2048,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "n_shared_experts": 1,
        "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 0,
        "qk_nope_head_dim": 256,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "hidden_act": "silu",
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "mlp_layer_types": ["dense"] + ["sparse"] * (LAYERS - 1),
        "layer_types": ["linear_attention"] * (LAYERS - 1) + ["full_attention"],
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 16,
        "index_kpool": 4,
        "index_kpool_always_select_tail": True,
        "indexer_rope_interleave": True,
        "swiglu_limit": 10.0,
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        "hc_mult": 4,
        "mhc": False,
        "mla_use_nope": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "pad_token_id": 0,
        "eos_token_id": 2047,
        "tie_word_embeddings": False,
        "hidden_size": 1024,
        "intermediate_size": 1024,
        "moe_intermediate_size": 256,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "q_lora_rank": 256,
        "linear_num_heads": 8,
    }
    (folder / "config.json").write_text(json.dumps(config))


def scale_weights_by_fan_in() -> None:
    """Replace the dummy loader's +-1e-3, with which any two builds agree."""
    import torch
    from vllm.model_executor.model_loader import dummy_loader

    made = [0]

    @torch.no_grad()
    def fill(param: Any, *args: Any, **kwargs: Any) -> None:
        if not torch.is_floating_point(param) or param.device.type == "meta":
            return
        if param.ndim == 0 or getattr(param, "dummy_weight_value", None) is not None:
            param.fill_(getattr(param, "dummy_weight_value", None) or 1.0)
            return
        made[0] += 1
        generator = torch.Generator(device=param.device).manual_seed(made[0])
        values = torch.randn(
            param.shape, generator=generator, device=param.device, dtype=torch.float32
        )
        if param.ndim == 1:
            values = 1 + values / 10
        else:
            values *= param.shape[-1] ** -0.5
        param.copy_(values)

    dummy_loader.initialize_single_dummy_weight = fill


def prefetch_state() -> tuple[Any, Any] | None:
    """The model's prefetch chain and its prefetcher, if it has one that is on.

    The device's prefetcher is asked for where the tree keeps it. The chain is an object
    of the model; those that vLLM froze when it started are not listed until thawed.

    Raises:
        RuntimeError: There is a prefetcher, and not one chain that uses it.
    """
    module = sys.modules.get("vllm.models.glm5next.nvidia.l2_prefetch")
    made = [] if module is None else module.L2Prefetcher._instances.values()
    prefetchers = [prefetcher for prefetcher in made if prefetcher is not None]
    if not prefetchers:
        return None
    gc.unfreeze()
    chains = [
        thing
        for thing in gc.get_objects()
        if type(thing).__name__ == "PrefetchChain" and thing._prefetcher is not None
    ]
    if len(prefetchers) != 1 or len(chains) != 1:
        raise RuntimeError(f"{len(prefetchers)} prefetchers, {len(chains)} chains")
    return chains[0], prefetchers[0]


def child(mode: str, tree: Path, folder: Path) -> dict[str, Any]:
    """One arm: start the engine, generate, say what came out."""
    sys.path.insert(0, str(tree))
    import torch
    from vllm import LLM, SamplingParams

    scale_weights_by_fan_in()
    # The base does not repeat itself on the longest prompt otherwise.
    tiny_glm.sort_selected_pools()
    began = time.monotonic()
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=0,
        max_model_len=8192,
        max_num_seqs=8,
        max_num_batched_tokens=8192,
        # A fixed cache size: arms that run at once disturb the profiling.
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=4 << 30,
        enforce_eager=mode == "eager",
        attention_config={"backend": "FLASHMLA_SPARSE"},
        compilation_config={"cudagraph_capture_sizes": [4, 8]},
        kernel_config={"enable_jit_warmup": False},
        enable_prefix_caching=False,
    )
    start_s = time.monotonic() - began
    generator = torch.Generator().manual_seed(1)
    prompts = [
        {
            "prompt_token_ids": torch.randint(
                1, 2000, (length,), generator=generator
            ).tolist()
        }
        for length in LENGTHS
    ]
    greedy = SamplingParams(
        temperature=0.0,
        max_tokens=NEW_TOKENS,
        ignore_eos=True,
        detokenize=False,
        logprobs=1,
    )

    def generate() -> list[Any]:
        return [
            [
                [token, entry[token].logprob.hex()]
                for token, entry in zip(
                    out.outputs[0].token_ids, out.outputs[0].logprobs, strict=True
                )
            ]
            for out in llm.generate(prompts, greedy, use_tqdm=False)
        ]

    passes = [generate(), generate()]
    result: dict[str, Any] = {"start_s": start_s, "outputs": passes}
    many = SamplingParams(
        temperature=0.0, max_tokens=65, ignore_eos=True, detokenize=False
    )
    # 8 x 30 prompt tokens are one step above the limit; 64 steps decode.
    short = {"prompt_token_ids": prompts[0]["prompt_token_ids"][:30]}
    batch, times = [short] * 8, []
    for _ in range(4):
        begin = time.perf_counter_ns()
        llm.generate(batch, many, use_tqdm=False)
        times.append(time.perf_counter_ns() - begin)
    result["batch_ns"] = times
    state = prefetch_state()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    before = dict(vars(state[1].counters)) if state else {}
    with torch.profiler.profile(activities=activities) as profile:
        llm.generate(batch, many, use_tqdm=False)
        torch.cuda.synchronize()
    result["profiled_steps"] = 64
    result["prefetch_kernels"] = sum(
        event.count for event in profile.key_averages() if "l2_prefetch" in event.key
    )
    if state is not None:
        chain, prefetcher = state
        counters = prefetcher.counters
        result["counters"] = vars(counters)
        result["steps_in_profile"] = counters.steps - before["steps"]
        result["layers"] = len(chain.windows)
        result["launches_a_step"] = sum(
            table is not None for w in chain.windows for table in w.plan.tables
        )
        result["bytes_a_step"] = sum(
            w.plan.nbytes(i) for w in chain.windows for i in range(3)
        )
        set_aside = getattr(prefetcher, "set_aside", None)
        result["set_aside"] = vars(set_aside) if set_aside else None
    return result


def engaged(result: dict[str, Any], mode: str) -> str | None:
    """Why an "on" arm does not count, or None."""
    counters = result.get("counters")
    if not counters:
        return "no prefetcher was made"
    expected = [result["layers"] * counters["steps"]] * 3
    if counters["fired"] != expected or not counters["steps"]:
        return f"windows opened {counters['fired']}, expected {expected}"
    if counters["launched"] != result["launches_a_step"] * counters["steps"]:
        return f"{counters['launched']} launches in {counters['steps']} steps"
    wanted = result["launches_a_step"] * result["profiled_steps"]
    if result["prefetch_kernels"] != wanted:
        return (
            f"{result['prefetch_kernels']} prefetch kernels ran, expected {wanted}: "
            f"{result['launches_a_step']} in each of {result['profiled_steps']} steps"
        )
    if mode == "graphs" and not counters["captured"]:
        return "no graph recorded a prefetch"
    if mode == "graphs" and result["steps_in_profile"]:
        return "the profiled steps were not replayed"
    return None


def counts(result: dict[str, Any]) -> dict[str, int]:
    """What an arm with the switch on did, beside what it had to do.

    Windows are layers x 3 x steps; launches, and kernels of the profile, are a step's
    times the steps.
    """
    counters = result["counters"]
    steps = counters["steps"]
    windows = 3 * result["layers"] * steps
    kernels = result["launches_a_step"] * (steps + result["profiled_steps"])
    return {
        "expected": windows + kernels,
        "counted": sum(counters["fired"])
        + counters["launched"]
        + result["prefetch_kernels"],
        # 0 where nothing was captured, as eagerly.
        "captured_nodes": counters["captured"],
    }


def collect(task: _unit.Task) -> dict[str, dict[str, Any]]:
    """Run every arm in every mode, some at once, each a process of its own.

    Returns:
        What each answered, by ``mode, arm``.

    Raises:
        _unit.Stop: One failed or took too long.
    """
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder))
        queue = [(mode, arm) for mode in MODES for arm in task.trees]
        running: dict[str, tuple[subprocess.Popen[bytes], Path, float]] = {}
        try:
            while queue or running:
                while queue and len(running) < JOBS:
                    mode, arm = queue.pop(0)
                    site = task.sites[arm]
                    out = Path(folder) / f"{mode}-{arm}.json"
                    env = {
                        name: value
                        for name, value in os.environ.items()
                        if not name.startswith(PREFIX)
                    }
                    env |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", **task.env[arm]}
                    env["PYTHONPATH"] = f"{site}:{env.get('PYTHONPATH', '')}"
                    command = [sys.executable, os.path.abspath(__file__), "--child"]
                    command += [mode, str(site), folder, str(out)]
                    with out.with_suffix(".log").open("wb") as log:
                        process = subprocess.Popen(
                            command, env=env, stdout=log, stderr=subprocess.STDOUT
                        )
                    running[f"{mode}, {arm}"] = (process, out, time.monotonic())
                time.sleep(0.1)
                for key, (process, out, begun) in list(running.items()):
                    if process.poll() is None:
                        if time.monotonic() - begun > TIMEOUT_S:
                            text = f"{key}: no result in {TIMEOUT_S} s"
                            raise _unit.Stop("invalid", text)
                        continue
                    del running[key]
                    if process.returncode or not out.exists():
                        log_text = out.with_suffix(".log").read_text(errors="replace")
                        raise _unit.Stop("invalid", f"{key} failed: {log_text[-2500:]}")
                    results[key] = json.loads(out.read_text())
        finally:
            for process, _, _ in running.values():
                process.kill()
                process.wait()
    return results


def answer(
    results: dict[str, dict[str, Any]], env: dict[str, dict[str, str]]
) -> _unit.Answer:
    """Compare the arms with the base.

    Args:
        results: What each answered, by ``mode, arm``.
        env: The switches of each arm.

    Raises:
        _unit.Stop: The base does not repeat itself, an arm with the switch on did not
            engage, or one without it did.
    """
    cases: list[dict[str, Any]] = []
    engagement: dict[str, dict[str, int]] = {}
    steps = {}

    def compare(name: str, reference: list[Any], other: list[Any]) -> None:
        for n, (want, got) in enumerate(zip(reference, other, strict=True)):
            apart = sum(a != b for a, b in zip(want, got, strict=True))
            cases.append(
                {
                    "id": f"{name}, {LENGTHS[n]} tokens",
                    "equal": want == got,
                    "elements": len(want),
                    "differing": apart,
                }
            )

    for mode in MODES:
        reference = results[f"{mode}, base"]["outputs"]
        for n, (one, two) in enumerate(zip(*reference, strict=True)):
            if one != two:
                text = f"{mode}: the base does not repeat itself on prompt {n}"
                raise _unit.Stop("invalid", text)
        for arm, switches in env.items():
            key = f"{mode}, {arm}"
            result = results[key]
            steps[key] = round(statistics.median(result["batch_ns"]) / 65e6, 4)
            if switches.get(PREFIX) == "1":
                if why := engaged(result, mode):
                    raise _unit.Stop("not-tested", f"{key}: did not engage: {why}")
                total = engagement.setdefault(arm, dict.fromkeys(counts(result), 0))
                for what, number in counts(result).items():
                    total[what] += number
            elif result["prefetch_kernels"]:
                raise _unit.Stop("rejected", f"{key}: prefetched although it is off")
            compare(key, reference[0], result["outputs"][0])
    for arm in env:
        # What a captured graph replays, against the same arm run eagerly.
        eager, graphs = (results[f"{mode}, {arm}"]["outputs"][0] for mode in MODES)
        compare(f"replay against eager, {arm}", eager, graphs)
    kernels = {key: result["prefetch_kernels"] for key, result in results.items()}
    return _unit.Answer(
        {"cases": cases},
        engagement,
        extra={"ms a step": steps, "prefetch kernels in 64 profiled steps": kernels},
    )


def measure(task: _unit.Task) -> _unit.Answer:
    """Run the arms and compare them."""
    l2_common.check_arms(task)
    if reason := l2_common.no_gpu():
        raise _unit.Stop("not-tested", reason)
    return answer(collect(task), task.env)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        chosen, site_folder, config_folder, result_file = sys.argv[2:]
        made = child(chosen, Path(site_folder), Path(config_folder))
        Path(result_file).write_text(json.dumps(made))
    else:
        _unit.run(measure)
