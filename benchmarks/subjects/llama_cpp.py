"""A llama of transformers in llama.cpp with weights in Q8_0, as a baseline for decode.py: it is there if llama-cpp-python and gguf are installed.

Q8_0 has a scale for each 32 weights of an output; inputs are rounded in the same way while the model runs.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch

NAME = "llama.cpp Q8_0"
CONTEXT = 256  # tokens of a sequence
_OF_MODEL = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_OF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def is_installed() -> bool:
    return all(importlib.util.find_spec(package) for package in ("llama_cpp", "gguf"))


class LlamaCpp:
    """Some sequences of one length, decoded side by side."""

    def __init__(self, llama: Any, sequences: int, threads: int) -> None:
        import llama_cpp

        llama_cpp.llama_log_set(_silent(), ctypes.c_void_p(0))
        self._words = llama.config.vocab_size
        of_model = llama_cpp.llama_model_default_params()
        of_model.use_mmap = False  # the file is deleted
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "llama.gguf"
            _write(llama, path)
            model = llama_cpp.llama_model_load_from_file(bytes(path), of_model)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max = CONTEXT * sequences, sequences
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(model, params)
        weakref.finalize(self, llama_cpp.llama_model_free, model)
        weakref.finalize(
            self, llama_cpp.llama_free, self._context
        )  # the last is called first, at the end of the process

    def logits(self, prompt: torch.Tensor) -> torch.Tensor:
        """Of the last token of each sequence, without what went before."""
        import llama_cpp

        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        return self._step(prompt, 0)[1]

    def decode(self, prompt: torch.Tensor, tokens: int) -> float:
        """As decode.decode: milliseconds a token, the shortest step."""
        found = self.logits(prompt)
        steps = []
        for place in range(prompt.shape[1], prompt.shape[1] + tokens):
            seconds, found = self._step(found.argmax(-1, keepdim=True), place)
            steps.append(seconds)
        return min(steps) * 1e3

    def _step(self, tokens: torch.Tensor, place: int) -> tuple[float, torch.Tensor]:
        """Seconds of the step alone, and the logits of each sequence's last token. The first token is at this place."""
        import llama_cpp

        sequences, length = tokens.shape
        batch = llama_cpp.llama_batch_init(tokens.numel(), 0, 1)
        batch.n_tokens = tokens.numel()
        for i, token in enumerate(tokens.flatten().tolist()):
            batch.token[i], batch.pos[i] = token, place + i % length
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, i // length
            batch.logits[i] = i % length == length - 1
        begun = time.perf_counter()
        failed = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_synchronize(self._context)
        seconds = time.perf_counter() - begun
        llama_cpp.llama_batch_free(batch)
        if failed:
            raise RuntimeError(f"llama_decode returned {failed}")
        rows = [
            np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, (i + 1) * length - 1), (self._words,))
            for i in range(sequences)
        ]
        return seconds, torch.from_numpy(np.stack(rows))


@functools.cache
def _silent() -> Any:
    """A logger that prints nothing, kept for as long as llama.cpp may call it."""
    import llama_cpp

    return llama_cpp.llama_log_callback(lambda *_: None)


def _write(llama: Any, path: Path) -> None:
    import gguf

    config = llama.config
    file = gguf.GGUFWriter(path, "llama")
    file.add_context_length(CONTEXT)
    file.add_embedding_length(config.hidden_size)
    file.add_block_count(config.num_hidden_layers)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    file.add_vocab_size(config.vocab_size)
    file.add_tokenizer_model("no_vocab")
    file.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    q8_0 = gguf.GGMLQuantizationType.Q8_0
    for name, parameter in llama.named_parameters():
        # A copy: a weight that NumPy holds is cast anew at each use.
        numbers = parameter.detach().clone().numpy()
        if ".q_proj." in name or ".k_proj." in name:
            numbers = _pairs_side_by_side(numbers, config.num_attention_heads)
        if numbers.ndim == 2:
            file.add_tensor(_named(name), gguf.quants.quantize(numbers, q8_0), raw_dtype=q8_0)
        else:
            file.add_tensor(_named(name), numbers)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


def _named(name: str) -> str:
    """The name in GGUF: model.layers.0.mlp.up_proj.weight is blk.0.ffn_up.weight."""
    module, _, kind = name.rpartition(".")
    if module in _OF_MODEL:
        return f"{_OF_MODEL[module]}.{kind}"
    _, _, layer, inner = module.split(".", 3)
    return f"blk.{layer}.{_OF_LAYER[inner]}.{kind}"


def _pairs_side_by_side(weight: np.ndarray, heads: int) -> np.ndarray:
    """transformers rotates number i of a head with number i + half, llama.cpp two neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
