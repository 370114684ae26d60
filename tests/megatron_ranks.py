"""One rank of Megatron-Core's own GPT, saved by Megatron-Core's own torch_dist writer: what an import is tested on.

    python megatron_ranks.py FOLDER RANK WORLD

It has no GPU to wait for and nothing to train: the weights are those of its initialisation. FOLDER gets the checkpoint
``iter_0000010`` and, from every rank, ``rank-N.safetensors`` with its own weights by their own names.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY = 3, 16, 4, 8, 64


def main(folder: Path, rank: int, world: int) -> None:
    """Save tensor-parallel rank ``rank`` of ``world``."""
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    # The writer waits for a GPU, which is not there, and asks for its number.
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
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
            # Norms begin as ones and biases as zeros, which would hide a mistake.
            parameter.add_(torch.randn(parameter.shape))
    target = folder / "iter_0000010"
    target.mkdir(exist_ok=True)
    distributed.barrier()
    arguments = argparse.Namespace(num_attention_heads=HEADS, layernorm_epsilon=1e-5)
    dist_checkpointing.save({"model": model.sharded_state_dict(), "args": arguments, "iteration": 10}, str(target))
    save_file({name: held.contiguous() for name, held in model.named_parameters()}, folder / f"rank-{rank}.safetensors")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
