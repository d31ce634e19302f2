"""Run a tiny random-weight GLM-5.3-Flash through vLLM and write what it answers.

One process is one arm. The model has three KDA layers and one sparse-MLA layer with
the kpool indexer per four layers, mixture-of-experts from the second layer on, and no
checkpoint: weights are drawn with fan-in scale. (vLLM's own dummy weights are so small
that every layer adds nothing and any two builds agree.) Prompts are token ids.

    python3 ci/gpu/tiny_glm.py --out answer.json --kpool 4 --eager

The answer holds the generated tokens, the log-probabilities of the most likely tokens
(exact, as hexadecimal floats), engagement counters, what the base's own code did
(watch.py) and times.

The base does not repeat its own answers to a prompt of which the indexer selects a part
(more than ``index_topk`` tokens): its selection kernels hand out output places with
``atomicAdd``, so the order of the selected pools changes from run to run, and with it
the order in which attention adds up. In all arms alike the selected pools are therefore
sorted before attention sees them; ``--free-selection`` leaves them as they come.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import watch

VOCABULARY = 2048
PROMPT_LENGTHS = (37, 640, 1023, 3001)


def text_config(args: argparse.Namespace) -> dict[str, Any]:
    """The language model's configuration.

    Widths with ``--full`` are those of GLM-5.3-Flash; the number of layers and of
    experts is not.
    """
    full, layers = args.full, args.layers
    return {
        "model_type": "glm5_next_text",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "eos_token_id": VOCABULARY - 1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "hidden_size": 4096 if full else 1024,
        "intermediate_size": 12288 if full else 1024,
        "num_hidden_layers": layers,
        "layer_types": [
            "linear_attention" if (i + 1) % args.mla_every else "full_attention"
            for i in range(layers)
        ],
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 16384,
        # sparse MLA and its indexer
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536 if full else 256,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "v_head_dim": 256,
        "mla_use_nope": True,
        "index_topk": 2048,
        "index_n_heads": 16,
        "index_head_dim": 128,
        "index_kpool": args.kpool,
        "index_kpool_always_select_tail": True,
        "indexer_rope_interleave": True,
        # KDA
        "linear_num_heads": args.kda_heads or (64 if full else 8),
        "linear_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
        # experts
        "mlp_layer_types": ["dense"] + ["sparse"] * (layers - 1),
        "n_routed_experts": 16 if full else 8,
        "num_experts_per_tok": 8 if full else 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 2048 if full else 256,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        # hyper-connections
        "mhc": args.mhc,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
    }


def model_config(args: argparse.Namespace) -> dict[str, Any]:
    """The whole ``config.json``; speculative decoding needs the outer class."""
    text = text_config(args)
    if not args.mtp:
        return {"architectures": ["Glm5NextForCausalLM"], **text}
    text["num_nextn_predict_layers"] = 1
    names = ("image", "video", "image_start", "image_end", "video_start", "video_end")
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "torch_dtype": "bfloat16",
        "text_config": text,
        "vision_config": {
            "model_type": "glm5_next_vision",
            "depth": 1,
            "hidden_size": 128,
            "num_heads": 2,
            "intermediate_size": 128,
            "out_hidden_size": text["hidden_size"],
            "projection_intermediate_size": 128,
        },
        **{f"{n}_token_id": VOCABULARY - 10 + i for i, n in enumerate(names)},
    }


def capture_sizes(args: argparse.Namespace) -> list[int]:
    """Tokens of the steps that graphs are recorded for.

    A verify step of four requests has four times the draft tokens and one each. With
    hyper-connections every size compiles kernels of its own.
    """
    if args.mhc:
        return [4]
    return [1, 2, 4, 8, *([4 * (args.mtp + 1)] if args.mtp else [])]


def engine_arguments(args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Arguments of ``vllm.LLM``."""
    arguments: dict[str, Any] = {
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "seed": 0,
        "max_model_len": args.max_len,
        "max_num_seqs": 8,
        "max_num_batched_tokens": args.budget,
        # A fixed cache size: profiling is confused by other arms on the same GPU.
        "gpu_memory_utilization": 0.15,
        "kv_cache_memory_bytes": args.cache_gib << 30,
        "enforce_eager": args.eager,
        "attention_config": {"backend": "FLASHMLA_SPARSE"},
        "compilation_config": {"cudagraph_capture_sizes": capture_sizes(args)},
        "enable_prefix_caching": False,
    }
    if args.mtp:
        arguments["language_model_only"] = True
        arguments["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": args.mtp,
        }
    return arguments


def use_fan_in_weights() -> None:
    """Replace vLLM's dummy initialisation by one that a difference shows through."""
    import torch
    import vllm.model_executor.model_loader.dummy_loader as loader

    drawn = 0

    @torch.no_grad()
    def draw(
        param: torch.Tensor,
        low: float = 0.0,
        high: float = 0.0,
        seed: int = 0,
        name: str = "",
    ) -> None:
        nonlocal drawn
        if not torch.is_floating_point(param) or param.device.type == "meta":
            return
        constant = getattr(param, "dummy_weight_value", None)
        if constant is not None or param.ndim == 0:  # scales of quantised caches
            param.fill_(constant or 1.0)
            return
        drawn += 1
        generator = torch.Generator(device=param.device).manual_seed(7000 + drawn)
        value = torch.randn(param.shape, generator=generator, device=param.device)
        if name.startswith("hc_"):
            is_scale = param.ndim == 1 and name.endswith("scale")
            value = torch.ones_like(value) if is_scale else 0.02 * value
        elif name == "A_log":
            value = 0.5 * value
        elif param.ndim == 1:
            value = 1 + 0.1 * value if name == "weight" else 0.1 * value
        else:
            value = value * param.shape[-1] ** -0.5
        param.copy_(value)

    loader.initialize_single_dummy_weight = draw


def sort_selected_pools() -> None:
    """Give attention the selected pools in ascending order, unused places last.

    Which pools are selected is left to the base's kernels; see the module's docstring.
    """
    import torch
    from vllm.models.glm5next.nvidia.ops import kpool_compress

    expand = kpool_compress.expand_pools_and_append_tail

    def sorted_first(
        pool_ids: torch.Tensor, seq_lens: torch.Tensor, pool_size: int
    ) -> torch.Tensor:
        last = torch.iinfo(pool_ids.dtype).max
        ordered = pool_ids.masked_fill(pool_ids < 0, last).sort(dim=-1).values
        ordered = ordered.masked_fill(ordered == last, -1)
        return expand(ordered, seq_lens, pool_size)

    kpool_compress.expand_pools_and_append_tail = sorted_first


def prompts(lengths: tuple[int, ...], seed: int) -> list[dict[str, list[int]]]:
    """Random prompts of token ids below the special ones."""
    import random

    rng = random.Random(seed)
    return [
        {"prompt_token_ids": [rng.randrange(1, VOCABULARY - 48) for _ in range(n)]}
        for n in lengths
    ]


def counters(names: list[str]) -> dict[str, int | None]:
    """Engagement counters where the tree has them, None where it has not.

    Args:
        names: ``module:path`` each. A path's parts are attributes, keys, or ``*`` for
            the only value of a dictionary; a callable on the way is called. A list of
            counters is their sum.

    Returns:
        The counters by name.
    """
    found: dict[str, int | None] = {}
    for name in names:
        module, _, path = name.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for part in path.split("."):
                if part == "*":
                    (value,) = value.values()
                elif isinstance(value, dict):
                    value = value[part]
                else:
                    value = getattr(value, part)
                if callable(value) and not isinstance(value, type):
                    value = value()
            found[name] = sum(value) if isinstance(value, list) else int(value)
        except (ImportError, AttributeError, KeyError, TypeError, ValueError):
            found[name] = None
    return found


@contextmanager
def engine(args: argparse.Namespace) -> Iterator[tuple[Any, float]]:
    """Start the model; yields the engine and the seconds that took."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    use_fan_in_weights()
    watch.install()
    if not args.free_selection:
        sort_selected_pools()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(model_config(args)))
        from vllm import LLM

        start = time.monotonic()
        llm = LLM(**engine_arguments(args, folder))
        yield llm, time.monotonic() - start


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Start the engine and answer the prompts twice."""
    import torch

    began = time.monotonic()
    with engine(args) as (llm, up):
        from vllm import SamplingParams

        ready = time.monotonic()
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=args.max_tokens,
            logprobs=5,
            ignore_eos=True,
            detokenize=False,
        )
        passes = []
        for _ in range(2):
            answers = []
            for output in llm.generate(
                prompts(PROMPT_LENGTHS, 1), sampling, use_tqdm=False
            ):
                answer = output.outputs[0]
                logprobs = [
                    sorted((token, p.logprob.hex()) for token, p in step.items())
                    for step in answer.logprobs or []
                ]
                answers.append({"tokens": list(answer.token_ids), "logprobs": logprobs})
            passes.append(answers)
    text = json.dumps(passes, sort_keys=True)
    return {
        "answers": passes[0],
        "repeats": [a == b for a, b in zip(*passes, strict=True)],
        "digest": hashlib.sha256(text.encode()).hexdigest(),
        "counters": counters(args.counter),
        "watched": watch.counts,
        "start_s": up,
        "import_s": ready - began - up,
        "answer_s": time.monotonic() - ready,
        "selection": "free" if args.free_selection else "sorted",
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model runs, and how."""
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--kpool", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4, help="decoder layers")
    parser.add_argument(
        "--mla-every", type=int, default=4, help="every which layer is sparse MLA"
    )
    parser.add_argument("--full", action="store_true", help="real widths")
    parser.add_argument("--mhc", action="store_true", help="hyper-connections (p2)")
    parser.add_argument("--mtp", type=int, default=0, help="draft tokens (p2)")
    parser.add_argument("--budget", type=int, default=8192, help="tokens per step")
    parser.add_argument("--max-len", type=int, default=8192, help="of a request")
    parser.add_argument("--cache-gib", type=int, default=4, help="of the KV cache")
    parser.add_argument(
        "--kda-heads", type=int, default=0, help="16 is a rank of TP 4 at real widths"
    )
    parser.add_argument(
        "--free-selection",
        action="store_true",
        help="leave the selected pools in the order the base's kernels give",
    )


def main() -> NoReturn:
    """Parse the command line, run, write the answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    add_model_options(parser)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--counter", action="append", default=[])
    args = parser.parse_args()
    answer = run(args)
    args.out.write_text(json.dumps(answer, sort_keys=True))
    print(
        f"digest {answer['digest'][:16]} up {answer['start_s']:.0f} s", file=sys.stderr
    )
    sys.stderr.flush()
    os._exit(0)  # the engine's own shutdown takes seconds and says nothing


if __name__ == "__main__":
    main()
