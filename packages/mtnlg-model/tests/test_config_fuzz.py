"""A config.json with changed fields is refused, or gives the logits that transformers gives it.

    python packages/mtnlg-model/tests/test_config_fuzz.py 2000 [--seed 1]

checks so many and prints what became of them; a case is repeated by its number. A small model of every row of
`test_families.MODELS` is changed in one to three fields: of its class, of other families, and unknown ones.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_families import MODELS, foreign_model, tokens

from mtnlg_model.console import Failure
from mtnlg_model.convert.huggingface import WEIGHTS, HuggingFaceWeights
from mtnlg_model.families import references

IN_TESTS: Final = 60
BOUND: Final = 2e-5
"""Of logits, relative: changed configurations are worse conditioned than `test_families` bounds, and errors larger."""
VALUES: Final[tuple[Any, ...]] = (
    *(
        None,
        True,
        False,
        0,
        1,
        2,
        3,
        4,
        6,
        8,
        12,
        16,
        24,
        48,
        64,
        80,
        96,
        -1,
        0.0,
        0.1,
        0.25,
        0.5,
        1.0,
        1.5,
        2.0,
        300.0,
    ),
    *(5e5, 1e6, "", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "quick_gelu", [], [0], [1, 0]),
    *(["full_attention"] * 2, ["sliding_attention", "full_attention"], {}, {"rope_type": "default"}),
    {"rope_type": "linear", "factor": 2.0},
    {"type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.5},
)
OTHERS: Final = """
    rope_theta rope_scaling rope_parameters partial_rotary_factor rotary_pct rotary_emb_base rope_type head_dim
    layer_types sliding_window use_sliding_window max_window_layers attention_bias mlp_bias num_hidden_layers
    num_attention_heads hidden_size n_embed n_head n_layer num_kv_heads layer_norm_eps rms_norm_eps hidden_act
    activation_function alibi is_decoder is_encoder_decoder add_cross_attention chunk_size_feed_forward pruned_heads
    use_cache torchscript output_attentions num_labels tie_encoder_decoder qk_norm clip_qkv n_special
    predict_special_tokens output_past _num_labels custom_pipelines unk_token_id seq_length n_ctx no_such_field
"""
"""Fields of other families, of older versions, and unknown ones."""


def changed(content: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A copy with one to three fields changed, added or taken away."""
    content = copy.deepcopy(content)
    for _ in range(chance.choice((1, 1, 2, 3))):
        name = chance.choice([*content, *OTHERS.split()])
        value = content.get(name)
        if name in {"model_type", "architectures", "dtype", "vocab_size"}:
            continue
        if chance.random() < 0.15:
            content.pop(name, None)
        elif isinstance(value, dict) and value and chance.random() < 0.8:
            content[name] = changed(value, chance) if name.startswith("rope") else value
        elif isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.6:
            content[name] = chance.choice((value + 1, value * 2, value // 2, value / 2, float(value), -value))
        elif isinstance(value, bool) and chance.random() < 0.7:
            content[name] = not value
        else:
            content[name] = copy.deepcopy(chance.choice(VALUES))
    return content


@cache
def folder_of(name: str, root: Path) -> Path:
    """The model as transformers saves it."""
    folder = root / str(list(MODELS).index(name))
    foreign_model(name).save_pretrained(folder)
    return folder


def drawn(seed: int, number: int, root: Path) -> tuple[str, str]:
    """What became of a case, and the fields that it changed."""
    name = list(MODELS)[number % len(MODELS)]
    before = json.loads((folder_of(name, root) / "config.json").read_text())
    content = changed(before, random.Random(f"{seed}/{number}"))
    differing = {key: content.get(key, "gone") for key in {*before, *content} if before.get(key) != content.get(key)}
    return outcome(name, content, root, f"{number} {name}: {differing}")


def outcome(name: str, content: dict[str, Any], root: Path, described: str = "") -> tuple[str, str]:
    """What became of a model whose config.json is ``content``."""
    from transformers import AutoModelForCausalLM

    plain = folder_of(name, root)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "config.json").write_text(json.dumps(content))
        (folder / WEIGHTS).hardlink_to(plain / WEIGHTS)
        try:
            decoder = HuggingFaceWeights(folder).decoder(torch.float32)
        except Failure:
            return "refused", described
        try:
            attention = "sdpa" if content.get("alibi") else "eager"  # as in `foreign_model`
            options: dict[str, Any] = {"attn_implementation": attention, "dtype": torch.float32}
            theirs, loading = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **options)
            if loading["missing_keys"]:
                return "not loaded by transformers", described
            tokens_BS = tokens(length=min(40, decoder.config.sequence))
            with torch.no_grad():
                reference_BSV = theirs(tokens_BS).logits
        except Exception as error:  # noqa: BLE001  (whatever it says of a folder that it cannot open)
            return "not loaded by transformers", f"{described} {error!s:.150}"
    with torch.no_grad():
        difference = float((decoder(tokens_BS) - reference_BSV).abs().max() / reference_BSV.abs().max())
    return ("equal" if difference <= BOUND else f"wrong by {difference:.1e}"), described


@pytest.mark.filterwarnings("ignore")  # of transformers, at what it is given
def test_a_changed_config_is_refused_or_equal(tmp_path: Path) -> None:
    results = [drawn(0, number, tmp_path) for number in range(IN_TESTS)]
    assert not [result for result in results if result[0].startswith("wrong")]
    assert {result for result, _ in results} >= {"equal", "refused"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("exaone 4", {"sliding_window": 96}),
        ("LGAI-EXAONE/EXAONE-4.0-32B", {"layer_types": None, "sliding_window_pattern": -2}),
    ],
)
def test_exaone_windows_match_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    content = json.loads((folder_of(name, tmp_path) / "config.json").read_text())
    assert outcome(name, content | changes, tmp_path)[0] == "equal"


MIXTURES: Final = ("phimoe", "olmoe", "qwen3_moe", "mixtral", "gpt_oss", "granitemoe", "deepseek_v3")


@pytest.mark.parametrize("model_type", MIXTURES)
def test_a_mixture_of_experts_is_refused_by_name(model_type: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    assert model_type not in references()
    AutoConfig.for_model(model_type).save_pretrained(tmp_path)
    with pytest.raises(Failure, match=rf"model_type = {model_type} \(\w+: a mixture of experts\): not supported"):
        HuggingFaceWeights(tmp_path)


def main() -> None:
    """Check as many cases as the command says."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        for number in range(options.first, options.first + options.cases):
            result, described = drawn(options.seed, number, Path(root))
            counts[result.split(" by ")[0]] += 1
            if result.startswith(("wrong", "not loaded")):
                print(f"{result}: {described}", file=sys.stderr, flush=True)  # noqa: T201  (its result)
    print(json.dumps({"seed": options.seed, "cases": options.cases, **counts}))  # noqa: T201  (as above)


if __name__ == "__main__":
    main()
