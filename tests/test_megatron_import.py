"""A checkpoint written by Megatron-Core at tp 2 is imported byte for byte."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, models

from megatron_ranks import HEADS, HIDDEN, LAYERS, SEQUENCE, VOCABULARY
from mtnlg_model.checkpoint.reader import Checkpoint
from mtnlg_model.config import ModelConfig
from mtnlg_model.convert.megatron import FIXED, SIZES
from mtnlg_model.convert.torch_dist import import_torch_dist

CONFIG = ModelConfig(layers=LAYERS, hidden=HIDDEN, heads=HEADS, sequence=SEQUENCE, vocabulary=VOCABULARY, mlp="gelu")
OURS = {
    "embedding.word_embeddings": "embedding.token",
    "embedding.position_embeddings": "embedding.position",
    "decoder.final_layernorm": "final_norm",
    "decoder.layers": "layers",
    "input_layernorm": "attention_norm",
    "self_attention.linear_qkv": "attention.qkv",
    "self_attention.linear_proj": "attention.out",
    "pre_mlp_layernorm": "mlp_norm",
    "mlp.linear_fc1": "mlp.up",
    "mlp.linear_fc2": "mlp.down",
}
ROWS, COLUMNS = ("token.weight", "qkv.weight", "qkv.bias", "up.weight", "up.bias"), ("out.weight", "down.weight")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    script = str(Path(__file__).with_name("megatron_ranks.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", script, str(folder), str(rank), "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return folder


def test_every_tensor_of_two_tensor_parallel_ranks_is_imported(run: Path, tmp_path: Path) -> None:
    tokenizer = tmp_path / "tokenizer.json"
    Tokenizer(models.BPE()).save(str(tokenizer))
    assert import_torch_dist(run / "iter_0000010", tmp_path / "ours", tokenizer) == CONFIG
    checkpoint = Checkpoint.open(tmp_path / "ours")
    checkpoint.verify()
    first, second = (load_file(run / f"rank-{rank}.safetensors") for rank in range(2))
    names = {key: our_name(key) for key in first}
    assert set(names.values()) == set(checkpoint.names)
    for key, ours in names.items():
        axis = 0 if ours.endswith(ROWS) else 1 if ours.endswith(COLUMNS) else None
        expected = first[key] if axis is None else torch.cat([first[key], second[key]], dim=axis)
        assert torch.equal(checkpoint.tensor(ours), expected), ours
    logits = [load_file(run / f"logits-{rank}.safetensors") for rank in range(2)]
    expected_BSV = torch.cat([each["logits"] for each in logits], dim=-1)
    bound = 4e-6 * float(expected_BSV.abs().max())
    torch.testing.assert_close(checkpoint.decoder()(logits[0]["tokens"]), expected_BSV, rtol=0.0, atol=bound)


HARMLESS = """
    sequence_parallel perform_initialization fp16 bf16 params_dtype timers deterministic_mode enable_autocast
    autocast_dtype finalize_model_grads_func grad_scale_func no_sync_func grad_sync_func param_sync_func
    gradient_accumulation_fusion async_tensor_model_parallel_allreduce overlap_moe_expert_parallel_comm
    delay_wgrad_compute variable_seq_lengths ep_overlap_early_attn_memory_release overlap_p2p_comm
    overlap_p2p_comm_warmup_flush batch_p2p_comm batch_p2p_sync deallocate_pipeline_outputs
    defer_embedding_wgrad_compute wgrad_deferral_limit microbatch_group_size_per_vp_stage
    num_microbatches_with_partial_activation_checkpoints use_ring_exchange_p2p mtp_standalone
    mtp_loss_scaling_factor barrier_with_L1_time attention_backend hidden_dropout attention_dropout
    fp32_residual_connection calculate_per_token_loss activation_func_fp8_input_store log_max_attention_logit
    test_mode apply_query_key_layer_scaling persist_layer_norm attention_softmax_in_fp32
    disable_bf16_reduced_precision_matmul memory_efficient_layer_norm distribute_saved_activations tp_only_amax_red
    first_last_layers_bf16 num_layers_at_start_in_bf16 num_layers_at_end_in_bf16 enable_cuda_graph
    external_cuda_graph clone_scatter_output_in_embedding disable_parameter_transpose_cache config_logger_dir
    flash_decode batch_invariant_mode symmetric_ar_type use_inference_optimized_layers hetereogenous_dist_checkpoint
    transformer_impl mlp_chunks_for_prefill offload_modules min_offloaded_tensor_size
    fine_grained_activation_offloading cp_comm_type max_seqlen_per_dp_cp_rank hybrid_context_parallel
    hierarchical_context_parallel_sizes use_te_rng_tracker pp_comm num_layers_in_first_pipeline_stage
    num_layers_in_last_pipeline_stage layernorm_epsilon num_query_groups rotary_interleaved no_rope_freq
    mrope_section add_qkv_bias use_te_activation_func config transformer_layer_spec vocab_size max_sequence_length
    pre_process post_process fp16_lm_cross_entropy self parallel_output share_embeddings_and_output_weights
    scatter_embedding_sequence_parallel seq_len_interpolation_factor mtp_block_spec pg_collection vp_stage
"""
"""What changes no result of a model with learned positions, no experts and a shape that its tensors show, beside what
begins or ends with `HARMLESS_PARTS`."""
HARMLESS_PARTS = (
    *("_parallel_size", "parallel_comm_backend", "_fusion", "_fused", "_rng_tracker", "pipeline_dtype", "init_method"),
    *("tp_comm_", "cpu_offloading", "recompute_", "moe_", "dsa_", "linear_", "mamba_", "cuda_graph_", "fp8", "fp4"),
    *("use_kitchen", "kitchen_", "inference_", "rope_", "rotary_", "account_for_", "init_", "qk_clip", "fused_"),
    *("cross_entropy_", "use_cpu_", "use_fused", "use_mamba", "pipeline_model_parallel_layout", "embedding_init"),
)


@pytest.mark.filterwarnings("ignore")  # at the imports
def test_every_argument_that_megatrons_model_reads_is_known() -> None:
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import TransformerConfig

    names = {field.name for field in dataclasses.fields(TransformerConfig)}
    names |= inspect.signature(GPTModel.__init__).parameters.keys()
    known = {*SIZES, *FIXED, *HARMLESS.split()}
    assert not {name for name in names - known if not any(part in name for part in HARMLESS_PARTS)}


def our_name(theirs: str) -> str:
    for part, ours in OURS.items():
        theirs = theirs.replace(part, ours)
    return theirs
