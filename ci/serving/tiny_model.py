# SPDX-License-Identifier: Apache-2.0
"""A tiny model with random weights and a byte tokenizer, to put under a real server.

    python ci/serving/tiny_model.py FOLDER [--layers N] [--hidden N]

Needs torch, transformers and tokenizers. A Llama of a few hundred thousand weights: it
says random letters, as fast as a server can be made to say them. Its logits are nearly
flat, so sampling at temperature 1 never falls into a loop.
"""

import argparse
import json
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}> {% endif %}"
)


def make(folder: Path, layers: int = 2, hidden: int = 128) -> None:
    """Write the model.

    Args:
        folder: Where to; made where it is missing.
        layers: Decoder layers.
        hidden: Hidden size, a multiple of 32.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2}
    vocabulary |= {char: n + 3 for n, char in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        chat_template=TEMPLATE,
        model_max_length=8192,
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=8192,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
        torch_dtype="float32",
    )
    model = LlamaForCausalLM(config)
    letters = [vocabulary[char] for char in "abcdefghijklmnopqrstuvwxyz\u0120"]
    with torch.no_grad():
        # One channel of the residual stream is the same everywhere and touched by no
        # layer; through it the head forbids everything but letters and spaces, so that
        # each token is one character of text.
        model.model.embed_tokens.weight[:, 0] = 10.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
        model.lm_head.weight[:, 0] = -100.0
        model.lm_head.weight[letters, 0] = 0.0
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    wrapped.save_pretrained(folder)
    generation = {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "do_sample": True,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")


def main() -> None:
    """Make the model that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    make(options.folder, options.layers, options.hidden)


if __name__ == "__main__":
    main()
