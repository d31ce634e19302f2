# SPDX-License-Identifier: Apache-2.0
"""A tiny model with random weights and a byte tokenizer, for llama.cpp's server.

    python ci/serving/tiny_gguf.py FILE.gguf [--layers N] [--hidden N]

Needs numpy and gguf. As in tiny_model.py the logits are nearly flat: sampling at
temperature 1 says random letters, never loops, and ends by itself after some
250 letters, unless the server is told to go on.
"""

import argparse
from pathlib import Path

TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}> {% endif %}"
)
SEED = 0
CONTEXT = 8192


def byte_letters() -> list[str]:
    """Return the letter that GPT-2's byte-level alphabet has for each byte.

    Printable bytes of Latin-1 stand for themselves, the others for letters from U+0100.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def make(file: Path, layers: int = 2, hidden: int = 64) -> None:
    """Write the model.

    Args:
        file: Where to.
        layers: Decoder layers.
        hidden: Hidden size, a multiple of 32.
    """
    import gguf
    import numpy

    random = numpy.random.default_rng(SEED)
    heads, inner = hidden // 32, 2 * hidden
    letters = byte_letters()
    # llama.cpp insists on merges: one of two letters that no prompt of ours has.
    pair = letters[0] + letters[1]
    tokens = ["<s>", "</s>", *letters, pair]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL

    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control, control] + [normal] * (len(tokens) - 2))
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(TEMPLATE)

    def weights(*shape: int) -> "numpy.ndarray":
        return (random.standard_normal(shape) / shape[-1] ** 0.5).astype("float32")

    ones = numpy.ones(hidden, "float32")
    writer.add_tensor("token_embd.weight", weights(len(tokens), hidden))
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", weights(len(tokens), hidden))
    for layer in range(layers):
        name = f"blk.{layer}."
        writer.add_tensor(f"{name}attn_norm.weight", ones)
        writer.add_tensor(f"{name}ffn_norm.weight", ones)
        for part in ("q", "k", "v", "output"):
            writer.add_tensor(f"{name}attn_{part}.weight", weights(hidden, hidden))
        writer.add_tensor(f"{name}ffn_gate.weight", weights(inner, hidden))
        writer.add_tensor(f"{name}ffn_up.weight", weights(inner, hidden))
        writer.add_tensor(f"{name}ffn_down.weight", weights(hidden, inner))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Write the model that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=64)
    options = parser.parse_args()
    make(options.file, options.layers, options.hidden)


if __name__ == "__main__":
    main()
