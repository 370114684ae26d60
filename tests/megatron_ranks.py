"""One rank of Megatron-Core's GPT, saved by its torch_dist writer: the input of the import test.

    python megatron_ranks.py FOLDER RANK WORLD

Runs without a GPU and trains nothing: the weights are random. FOLDER gets the checkpoint ``iter_0000010`` and, from
every rank, ``rank-N.safetensors`` with its weights under their Megatron names.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from torch import distributed

SLICED = ("word_embeddings.weight", "qkv.weight", "qkv.bias", "fc1.weight", "fc1.bias", "proj.weight", "fc2.weight")
"""Ends of the names of parameters of which each rank has its own slice."""
LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY = 3, 16, 4, 8, 64


def main(folder: Path, rank: int, world: int) -> None:
    """Save tensor-parallel rank ``rank`` of ``world``."""
    from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    # The writer synchronizes with a GPU and queries its number; there is none.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    tensor_parallel.get_cuda_rng_tracker = lambda: SimpleNamespace(fork=nullcontext)  # of dropout, which is off
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    parallel_state.initialize_model_parallel(world, 1)
    torch.manual_seed(rank)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        use_cpu_initialization=True,
        tensor_model_parallel_size=world,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        position_embedding_type="learned_absolute",
        share_embeddings_and_output_weights=True,
    )
    with torch.no_grad():
        for parameter in model.parameters():
            # Initial norms are ones and biases zeros, which would hide a mistake.
            parameter.add_(torch.randn(parameter.shape) * 0.2)
        # Weights that ranks share are rank 0's, as in training.
        for name, parameter in model.named_parameters():
            if not name.endswith(SLICED):
                distributed.broadcast(parameter, 0)
        tokens_BS = torch.arange(2 * SEQUENCE).view(2, SEQUENCE) * 7 % VOCABULARY
        positions_BS = torch.arange(SEQUENCE).expand(2, -1)
        mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)[None, None]
        logits_BSV = model.eval()(tokens_BS, positions_BS, mask)
    target = folder / "iter_0000010"
    target.mkdir(exist_ok=True)
    distributed.barrier()
    activation = {"bias_gelu_fusion": False, "openai_gelu": False}  # of the configuration's GeLU
    arguments = argparse.Namespace(num_attention_heads=HEADS, layernorm_epsilon=1e-5, **activation)
    dist_checkpointing.save({"model": model.sharded_state_dict(), "args": arguments, "iteration": 10}, str(target))
    save_file({"tokens": tokens_BS, "logits": logits_BSV.contiguous()}, folder / f"logits-{rank}.safetensors")
    save_file(
        {name: tensor.contiguous() for name, tensor in model.named_parameters()}, folder / f"rank-{rank}.safetensors"
    )
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
