"""Models of every family of transformers: logits, loss, gradients, tokens and files are transformers' own."""

from __future__ import annotations

import copy
import json
import math
import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
import torch
from safetensors.torch import load_file, save_file

from mtnlg_model import families, functional, registry
from mtnlg_model.checkpoint.reader import Checkpoint, save
from mtnlg_model.config import LayerConfig, LongRopeScaling
from mtnlg_model.console import Failure, UsageFailure
from mtnlg_model.convert import huggingface
from mtnlg_model.convert.config_json import from_config_json, read_config, to_config_json
from mtnlg_model.convert.family_tensors import to_theirs
from mtnlg_model.convert.huggingface import INDEX, export_huggingface, import_huggingface
from mtnlg_model.decoder import Decoder
from mtnlg_model.families import PRESETS, load_family, preset, references
from mtnlg_model.families.family import REQUIRED
from mtnlg_model.generation.generate import generate

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel


SIZES: Final = {
    "vocab_size": 307,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "max_position_embeddings": 64,
    "intermediate_size": 80,
}
LLAMA3: Final = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT2: Final = {"vocab_size": 307, "n_layer": 2, "n_embd": 48, "n_head": 6, "n_positions": 64}
GPT_NEO: Final[dict[str, Any]] = {
    "vocab_size": 307,
    "hidden_size": 48,
    "num_layers": 2,
    "num_heads": 6,
    "max_position_embeddings": 64,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 12,
}
SHARED: Final = {**SIZES, "num_key_value_heads": 2}
WINDOW: Final = {**SHARED, "sliding_window": 12}
OPT: Final = {**SIZES, "ffn_dim": 80, "word_embed_proj_dim": 48}
ALIBI: Final = {"vocab_size": 307, "hidden_size": 48, "n_layer": 2, "seq_length": 64}
HUB: Final[dict[str, dict[str, Any]]] = json.loads((Path(__file__).parent / "hub_configs.json").read_text())
"""config.json of models on the hub in small sizes, by name."""
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt-neo": ("gpt_neo", GPT_NEO),
    "pythia": ("gpt_neox", SIZES),
    "gpt-neox, in sequence": ("gpt_neox", {**SIZES, "use_parallel_residual": False, "hidden_act": "gelu_new"}),
    "llama 2": ("llama", {**SIZES, "rms_norm_eps": 1e-5}),
    "llama 3.1": (
        "llama",
        {**SIZES, "num_key_value_heads": 3, "rope_parameters": {"rope_theta": 500.0, **LLAMA3}},
    ),
    "llama 3.2": ("llama", {**SIZES, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen2.5": ("qwen2", {**SHARED, "tie_word_embeddings": True}),
    "qwen2.5, window above": ("qwen2", {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", {**SHARED, "head_dim": 16}),
    "qwen3, tied": ("qwen3", {**SIZES, "num_key_value_heads": 3, "head_dim": 8, "tie_word_embeddings": True}),
    "starcoder2": ("starcoder2", SHARED),
    "starcoder2, window": ("starcoder2", {**WINDOW, "use_bias": False, "tie_word_embeddings": False}),
    "olmo 2": ("olmo2", {**SHARED, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "gemma 2": (
        "gemma2",
        {**WINDOW, "head_dim": 16, "query_pre_attn_scalar": 10, "num_hidden_layers": 3, "final_logit_softcapping": 3.0},
    ),
    "gemma 2, no caps": (
        "gemma2",
        {**WINDOW, "head_dim": 16, "attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "gemma 3": (
        "gemma3_text",
        {
            **WINDOW,
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 8.0},
            },
        },
    ),
    "opt": ("opt", OPT),
    "opt 350m": ("opt", {**OPT, "word_embed_proj_dim": 24, "do_layer_norm_before": False}),
    "opt, wide table, no final norm": (
        "opt",
        {**OPT, "word_embed_proj_dim": 64, "_remove_final_layer_norm": True, "tie_word_embeddings": False},
    ),
    "galactica": ("opt", {**OPT, "activation_function": "gelu"}),
    "smollm 3, window": ("smollm3", {**WINDOW, "no_rope_layer_interval": 2, "use_sliding_window": True}),
    "qwen2.5, yarn": (
        "qwen2",
        {**SHARED, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
    ),
    "llama, dynamic": ("llama", {**SHARED, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "bloom": ("bloom", {**ALIBI, "n_head": 6}),
    "bloom, 8 heads, a head of its own": ("bloom", {**ALIBI, "n_head": 8, "tie_word_embeddings": False}),
    "gpt-j": ("gptj", {**GPT2, "rotary_dim": 4}),
    "gpt-j, whole heads": ("gptj", {**GPT2, "rotary_dim": 8, "activation_function": "gelu"}),
    "phi, shared heads": ("phi", {**SHARED, "rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 300.0}}),
    "olmo": ("olmo", {**SHARED, "clip_qkv": 1.5, "tie_word_embeddings": True}),
    "olmo 3": ("olmo3", {**WINDOW, "num_hidden_layers": 4}),
    "exaone 4": ("exaone4", {**SHARED, "sliding_window": None, "layer_types": ["full_attention"] * 2}),
    **{name: (content["model_type"], content) for name, content in HUB.items()},
}
"""Family and sizes, by what it is a small one of."""
SPREAD: Final = 2.0
"""Error of our fp32 gradients over that of transformers', at most; measured 0.7 to 1.6."""
OUR_FAMILIES: Final = {model_type for model_type, _ in MODELS.values()}


def foreign_model(name: str) -> PreTrainedModel:
    """The model of this name in evaluation mode, every parameter random about its initial 0 or, of norms, 1."""
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, sizes = MODELS[name]
    ids = {"bos_token_id": 306, "eos_token_id": 306, "pad_token_id": None}
    # Falcon's eager attention adds the slopes twice.
    attention = {} if sizes.get("alibi") else {"attn_implementation": "eager"}
    config = AutoConfig.for_model(**{**sizes, **attention, **ids, "model_type": model_type})
    generator = torch.Generator().manual_seed(11)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            values = torch.randn(parameter.shape, generator=generator) * 0.15
            parameter.copy_(values + parameter if parameter.dim() == 1 else values)
    model.eval()(tokens(1))  # makes LongRoPE's long factors
    return model


@pytest.fixture(scope="session", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def theirs(name: str) -> PreTrainedModel:
    return foreign_model(name)


@pytest.fixture(scope="session")
def folder(name: str, theirs: PreTrainedModel, tokenizer_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as transformers saves it, in shards; one of the hub with the config.json that it has there."""
    folder = tmp_path_factory.mktemp("theirs")
    theirs.save_pretrained(folder, max_shard_size="50KB")
    if name in HUB:
        (folder / "config.json").write_text(json.dumps(HUB[name]))
    (folder / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    return folder


@pytest.fixture(scope="session")
def ours(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    target = tmp_path_factory.mktemp("ours") / "imported"
    import_huggingface(str(folder), str(target))
    return Checkpoint.open(str(target))


def tokens(rows: int = 3, length: int = 40) -> Tensor:
    return torch.randint(300, (rows, length), generator=torch.Generator().manual_seed(5))


def gradients(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Gradients of the loss of a copy with parameters of ``dtype``; in float64, norms and softmax are in it too."""
    model, tokens_BS = copy.deepcopy(model), tokens()
    for parameter in model.parameters():
        parameter.data, parameter.grad = parameter.data.to(dtype), None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", dtype)  # the type of norms and softmax
        patch.setattr(torch.Tensor, "float", lambda x: x.to(dtype))
        logits_BSV = getattr(output := model(tokens_BS), "logits", output)
        loss = torch.nn.functional.cross_entropy(logits_BSV[:, :-1].flatten(0, 1), tokens_BS[:, 1:].flatten())
        torch.autograd.backward(loss)
    return {name: parameter.grad.double() for name, parameter in model.named_parameters() if parameter.grad is not None}


def test_logits_and_loss_equal_transformers(theirs: PreTrainedModel, ours: Checkpoint) -> None:
    tokens_BS = tokens()
    with torch.no_grad():
        logits_BSV, reference = ours.decoder()(tokens_BS), theirs(tokens_BS, labels=tokens_BS)
    bound = 4e-6 * float(reference.logits.abs().max())
    torch.testing.assert_close(logits_BSV, reference.logits, rtol=0.0, atol=bound)
    assert torch.equal(logits_BSV.argmax(-1), reference.logits.argmax(-1))
    loss = functional.cross_entropy(logits_BSV[:, :-1], tokens_BS[:, 1:]).mean()
    torch.testing.assert_close(loss, reference.loss, rtol=1e-5, atol=0.0)


def test_every_gradient_equals_transformers(theirs: PreTrainedModel, ours: Checkpoint) -> None:
    """In float64, to 1e-6. In fp32 the rounding of products alone moves some by 5e-6: ours are as near as theirs."""
    renamed = {"lm_head.weight": "embed_out.weight"} if theirs.config.model_type == "gpt_neox" else {}
    family, _ = from_config_json(theirs.config.to_dict(), "")
    reference, single = (
        {renamed.get(key, key): gradient for key, gradient in gradients(theirs, dtype).items()}
        for dtype in (torch.float64, torch.float32)
    )
    own = [gradients(ours.decoder(), dtype) for dtype in (torch.float64, torch.float32)]
    compared, errors = set[str](), list[tuple[float, ...]]()
    for name in own[0]:
        groups = [to_theirs(family, ours.config, name, *(each[one] for one in family.group(name)[0])) for each in own]
        compared |= groups[0].keys()
        # Of the group, since the gradient of k's bias alone is nothing without rotary positions.
        most = max(float(reference[key].abs().max()) for key in groups[0])
        errors.append(
            tuple(
                max(float((each[key] - reference[key]).abs().max()) for key in groups[0]) / most
                for each in (*groups, single)
            )
        )
    assert compared == reference.keys()
    in_float64, in_fp32, theirs_in_fp32 = (max(each) for each in zip(*errors, strict=True))
    assert in_float64 < 1e-6
    assert in_fp32 < max(2e-6, SPREAD * theirs_in_fp32)


def test_greedy_generation_equals_transformers_token_for_token(theirs: PreTrainedModel, ours: Checkpoint) -> None:
    """Of rows alone, and of a ragged batch, whose positions count from each row's own first token."""
    prompts = [row.tolist()[:length] for row, length in zip(tokens(), (9, 2, 20), strict=True)]
    decoder = ours.decoder()
    wanted = []
    for prompt in prompts:
        mask = torch.ones(1, len(prompt), dtype=torch.long)
        options = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        wanted.append(
            theirs.generate(torch.tensor([prompt]), attention_mask=mask, **options)[0, len(prompt) :].tolist()
        )
    assert generate(decoder, prompts, 16) == wanted
    assert [generate(decoder, [prompt], 16)[0] for prompt in prompts] == wanted


def test_cache_holds_only_kv_heads(ours: Checkpoint) -> None:
    length = ours.config.longest_short_text or 32
    decoder, tokens_BS = ours.decoder(), tokens(length=length)
    cache = decoder.cache(length)
    with torch.inference_mode():
        pieces = [
            decoder(part, cache.positions(part), cache.attend())
            for part in torch.split(tokens_BS, [17, 1, 1, length - 19], 1)
        ]
        torch.testing.assert_close(torch.cat(pieces, 1), decoder(tokens_BS), rtol=1e-4, atol=1e-5)
        nothing = torch.empty(3, ours.config.kv_heads, 0, ours.config.head_size)
        keys, values = cache.layers[0].append(nothing, nothing)
    kept = (ours.config.layer(0).window or length + 1) - 1
    assert keys.shape == values.shape == (3, ours.config.kv_heads, kept, ours.config.head_size)


def test_packed_documents_match_separate_documents(ours: Checkpoint) -> None:
    decoder, lengths, tokens_BS = ours.decoder(), [9, 31], tokens(1)
    positions_BS = torch.cat([torch.arange(length) for length in lengths])[None]
    with torch.no_grad():
        together = decoder(tokens_BS, positions_BS, [functional.Documents((*lengths,))] * ours.config.layers)
        alone = torch.cat([decoder(part) for part in torch.split(tokens_BS, lengths, 1)], 1)
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_decoder_compiles_for_two_lengths(ours: Checkpoint) -> None:
    decoder = ours.decoder()
    torch.compiler.reset()
    compiled = torch.compile(decoder, fullgraph=True, backend="eager")
    with torch.no_grad():
        for length in (33, 20):
            torch.testing.assert_close(compiled(tokens(length=length)), decoder(tokens(length=length)))


def test_open_gives_the_decoder_of_either_format(folder: Path, ours: Checkpoint) -> None:
    expected = ours.decoder()(tokens())
    for path in (folder, str(folder), ours.directory):
        assert torch.equal(Decoder.open(path)(tokens()), expected)


def test_import_and_export_round_trip(
    name: str, folder: Path, ours: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 40_000)
    export_huggingface(ours, tmp_path / "out", family=MODELS[name][0])
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1
    before, after = (
        {key: tensor for file in sorted(each.glob("*.safetensors")) for key, tensor in load_file(file).items()}
        for each in (folder, tmp_path / "out")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    again = read_config(tmp_path / "out")
    assert again == ours.config


def test_transformers_opens_the_export_with_the_same_logits(
    theirs: PreTrainedModel, ours: Checkpoint, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    export_huggingface(ours, tmp_path / "out", family=theirs.config.model_type)
    attention = theirs.config._attn_implementation
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation=attention)
    with torch.no_grad():
        expected = theirs(tokens()).logits
        is_renamed = getattr(theirs.config, "activation_function", "") == "gelu_fast"  # GELU by tanh, in other steps
        atol = 1e-6 * float(expected.abs().max()) if is_renamed else 0.0
        torch.testing.assert_close(opened(tokens()).logits, expected, rtol=0.0, atol=atol)


def test_a_vocabulary_is_padded_at_import_and_cut_at_export(
    theirs: PreTrainedModel, folder: Path, ours: Checkpoint, tmp_path: Path
) -> None:
    import_huggingface(folder, tmp_path / "padded", vocabulary_multiple=128)
    padded = Checkpoint.open(tmp_path / "padded")
    assert (padded.config.vocabulary, padded.config.tokens) == (384, 307)
    assert not padded.tensor("embedding.token.weight", (slice(307, 384), slice(None))).any()
    with torch.no_grad():
        assert torch.equal(padded.decoder()(tokens()), ours.decoder()(tokens()))
    export_huggingface(padded, tmp_path / "out")
    _, (table,) = to_config_json(padded.config)[0].group("embedding.token.weight")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")[table], theirs.get_input_embeddings().weight)


LONG: Final = {
    "type": "longrope",
    "short_factor": [1.0, 1.0, 2.0, 3.0],
    "long_factor": [9.0] * 4,
    "original_max_position_embeddings": 32,
}
LLAMA: Final = {"model_type": "llama", **SIZES}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"model_type": "falcon", "alibi": True},
            "positions = alibi-bf16 needs kv_heads = heads",
        ),
        ({"model_type": None}, "model_type = None: not supported; bloom, exaone4, "),
        ({"model_type": ["llama"]}, r"model_type = \['llama'\]: not supported"),
        ({"model_type": "mistral", "num_key_value_heads": 2, "sliding_window": "32"}, "sliding_window = 32: "),
        ({"model_type": "mistral", "num_key_value_heads": 2, "layer_types": ["full_attention"] * 2}, "layer_types = "),
        ({"model_type": "qwen2", "num_key_value_heads": 2, "layer_types": ["sliding_attention"] * 2}, "layer_types = "),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rope_scaling: rope_type = proportional: only default, dyn"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, r"rope_scaling: rope_type = \['linear'\]: only default, dyn"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "rope_scaling: factor = 'x': Input should be a valid"),
        ({"rope_scaling": LONG, "original_max_position_embeddings": 16}, "embeddings = 16 and 32: programs differ in"),
        ({"rope_scaling": {**LONG, "short_factor": 5}}, "longrope: "),
        ({"model_type": "smollm3", "num_key_value_heads": 2, "no_rope_layers": [1]}, "not what SmolLM3ForCausalLM"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}},
            "rope_parameters: full_attention: missing",
        ),
        (GPT_NEO | {"model_type": "gpt_neo", "attention_types": ["local", "global"]}, "not what GPTNeoForCausalLM"),
        ({"model_type": "gpt2", **GPT2, "num_attention_heads": 3}, "config.json: n_head = 6 and 3: programs differ in"),
        ({"model_type": "olmo3", "rope_theta": 1e4}, "config.json: rope_theta = 10000.0: only 500000.0 is supported"),
        ({"model_type": "gptj", **GPT2, "rotary_dim": 7}, "rotary positions rotate pairs; 7 of 8 values are not pairs"),
        (
            {"model_type": "gptj", **GPT2, "n_head": 96, "num_attention_heads": 96},
            "heads = 96 does not divide hidden = 48",
        ),
        ({"model_type": "phi", "tie_word_embeddings": True}, "tie_word_embeddings = True: only False is supported"),
        ({"model_type": "gemma2", "query_pre_attn_scalar": -1}, "query_pre_attn_scalar = -1: not positive"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling: low_freq_factor: missing"),
        ({"rope_theta": "many"}, "rope_theta = many: not of type float"),
        ({"partial_rotary_factor": 0.5}, "config.json: partial_rotary_factor = 0.5: only 1 is supported"),
        ({"hidden_act": "relu"}, "hidden_act = relu: only silu, swish are supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config = .*: quantized weights are not supported"),
        ({"num_key_value_heads": 4}, "kv_heads = 4 does not divide heads = 6"),
        ({"num_attention_heads": True}, "num_attention_heads = True: not of type int"),
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"model_type": "gpt_neox", "head_dim": 16}, "head_dim = 16: only 8 is supported"),
        ({"head_dim": 7}, "rotary positions rotate pairs; 7 of 7 values are not pairs"),
    ],
)
def test_unsupported_setting_is_named_in_one_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Failure, match=message) as failure:
        from_config_json({**LLAMA, **changed}, "config.json")
    assert "\n" not in str(failure.value)
    assert len(str(failure.value)) < 350


def test_other_names_of_a_field_mean_the_same() -> None:
    named = {"model_type": "gpt2", **GPT2}
    other = {**named, "num_attention_heads": 6, "n_head": None, "num_hidden_layers": 2}
    assert from_config_json(named, "")[1] == from_config_json(other, "")[1]
    bloom = {"model_type": "bloom", "vocab_size": 307, "n_layer": 2, "n_head": 6}
    assert from_config_json({**bloom, "n_embed": 48}, "")[1] == from_config_json({**bloom, "hidden_size": 48}, "")[1]


def test_longrope_is_that_of_short_texts_where_the_sequence_is() -> None:
    phi3 = {**LLAMA, "model_type": "phi3", "rope_scaling": LONG, "original_max_position_embeddings": 32}
    expected = LongRopeScaling(factors=(1.0, 1.0, 2.0, 3.0), attention_factor=math.sqrt(1 + math.log(2) / math.log(32)))
    assert from_config_json(phi3, "", sequence=32)[1].rotary_scaling == expected


HARMLESS: Final = """
    use_cache initializer_range embd_pdrop embed_dropout embedding_dropout reorder_and_upcast_attn classifier_dropout
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout is_decoder layerdrop
    attention_softmax_in_fp32 scale_attention_softmax_in_fp32 pretraining_tp rope_parameters sliding_window layer_types
    window_size max_window_layers original_max_position_embeddings bos_token_id eos_token_id pad_token_id model_type
"""


@pytest.mark.parametrize("model_type", references())
def test_every_field_that_transformers_reads_is_known(model_type: str) -> None:
    """So that any other field changes no logit; a family's own fields are those that its class declares."""
    from transformers import AutoConfig

    fields = type(AutoConfig.for_model(model_type)).__annotations__
    assert not {name for name in fields if not name.isupper()} - {
        *load_family(model_type).fields,
        *HARMLESS.split(),
        *("base_model_tp_plan", "base_model_pp_plan", "keys_to_ignore_at_inference", "attribute_map"),
    }


def test_window_beyond_the_sequence_is_dropped() -> None:
    mistral = {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "sliding_window": 32}
    assert from_config_json(mistral, "")[1].by_layer == (LayerConfig(window=32),)
    assert from_config_json(mistral, "", sequence=32)[1].by_layer == ()
    assert from_config_json({**mistral, "sliding_window": 64}, "")[1].by_layer == ()
    del mistral["sliding_window"]  # then transformers takes 4,096
    assert from_config_json({**mistral, "max_position_embeddings": 8192}, "")[1].layer(1).window == 4096
    with pytest.raises(Failure, match="--sequence 65: only rotary positions up to 64 can be limited"):
        from_config_json(mistral, "", sequence=65)


FAMILY_FILE: Final = """
from mtnlg_model.families import llama
FAMILY = llama.FAMILY.like("MyForCausalLM", modules={"mlp.up": "mlp.wide"}, presets={"mine": None})
"""


def test_a_family_is_found_by_name_entry_point_and_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FAMILY_FILE)
    reference = f"{tmp_path / 'mine.py'}:FAMILY"
    mine = load_family(reference)
    assert mine.group("layers.3.mlp.up.weight") == (["layers.3.mlp.up.weight"], ["model.layers.3.mlp.wide.weight"])
    assert from_config_json({**LLAMA, "model_type": "mine"}, "", family=reference)[0] is mine
    monkeypatch.setattr(registry, "entry_points", lambda **_: [EntryPoint("mine", reference, families.GROUP)])
    assert from_config_json({**LLAMA, "model_type": "mine"}, "")[0] is mine
    assert list(references()) == [*sorted(OUR_FAMILIES), "mine"]
    preset("mine")
    for wrong in ("none", "no.such.module:FAMILY", f"{tmp_path}/none.py:FAMILY", "json:loads", "json:none", ":"):
        with pytest.raises(UsageFailure):
            load_family(wrong)


@pytest.mark.parametrize("model_type", references())
def test_missing_fields_default_as_in_transformers(model_type: str) -> None:
    from transformers import AutoConfig

    complete = AutoConfig.for_model(model_type).to_dict()
    rows = load_family(model_type).fields.items()
    required = {key for key, row in rows if row.default is REQUIRED and not row.values}
    shortened = {key: complete[key] for key in ("model_type", *required)}
    assert from_config_json(shortened, "")[1] == from_config_json(complete, "")[1]


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith("mt-nlg")])
def test_presets_round_trip_through_their_family(name: str) -> None:
    config = PRESETS[name]
    _, content = to_config_json(config)
    back = from_config_json(json.loads(json.dumps(content)), "")[1]
    assert back == config.model_copy(update={"init_std": config.std})


def test_a_decoder_of_no_family_is_not_exported() -> None:
    mixed = PRESETS["tiny"].model_copy(update={"norm": "rms", "bias": False})
    with pytest.raises(
        Failure, match=r"no family of .*gpt2, .* has a decoder with norm = rms, bias = False; cannot be"
    ):
        to_config_json(mixed)


def test_incomplete_folder_is_refused_before_writing(tokenizer_path: Path, tmp_path: Path) -> None:
    foreign_model("microsoft/phi-4").save_pretrained(tmp_path / "whole", max_shard_size="50KB")
    (tmp_path / "whole" / "tokenizer.json").write_bytes(tokenizer_path.read_bytes())
    index = json.loads((tmp_path / "whole" / INDEX).read_text())["weight_map"]
    last = max(index.values())
    folder = shutil.copytree(tmp_path / "whole", tmp_path / "no shard")
    (folder / last).unlink()
    with pytest.raises(Failure, match=f"{last}: no such weights"):
        import_huggingface(folder, tmp_path / "out")
    folder = tmp_path / "whole"
    tensors = load_file(folder / last)
    save_file({**tensors, "adapter.weight": torch.ones(3)}, folder / last)
    with pytest.raises(Failure, match=r"adapter\.weight: not a tensor of"):
        import_huggingface(folder, tmp_path / "out")


def test_padding_of_a_vocabulary_is_no_claim_on_the_files(ours: Checkpoint, tmp_path: Path) -> None:
    """In 16 bits the files hold two bytes a parameter and a header, which is shorter than the rows of the padding."""
    progress, tokenizer = ours.progress, ours.tokenizer_path
    half = save(ours.decoder().to(torch.bfloat16), tmp_path / "half", 1, progress, tokenizer)
    export_huggingface(Checkpoint.open(half), tmp_path / "folder")
    assert import_huggingface(tmp_path / "folder", tmp_path / "out", vocabulary_multiple=4096).vocabulary == 4096
