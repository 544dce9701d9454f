from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from factory import make_model, model_folders
from model import families
from model.stepping import Stepper, assert_same_as_reference, plan, prompt
from slipway.load.arrays import FP32
from slipway.load.errors import LoadError
from slipway.load.quantized.form import Form
from slipway.schemes.choice import Schemes
from slipway.schemes.scheme import NewScheme
from slipway.worker.packed_modules import pack_modules
from slipway.worker.probe import Place
from slipway.worker.transformers_model import Attentions, attend

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
LATENT = {  # DeepSeek's attention: keys of 24 numbers, values of 12
    **SIZES,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "opt": ("opt", {}),
    "gpt2": ("gpt2", {}),
    "phi3": ("phi3", {}),
    "phi3_window": ("phi3", {"sliding_window": 24}),
    "llama": ("llama", {}),
    "gemma3_text": ("gemma3_text", {}),
    "qwen2_moe": ("qwen2_moe", {}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return model_folders(tmp_path_factory.mktemp("fallback"), VARIANTS)


def save(folder: Path, kind: str, **sizes: Any) -> Path:
    """A random model of a kind that the factory does not make."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(8)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_greedy_output_is_that_of_transformers(folders: Any, variant: str) -> None:
    stepper = Stepper(folders(variant), model_impl="transformers")
    assert stepper.plan.route.spec is None
    tokens = prompt(50)
    assert_same_as_reference(folders(variant), tokens, stepper.greedy({1: tokens}, 12, chunk=20)[1])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["opt", "gpt2", "phi3_window", "qwen2_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_results_do_not_depend_on_company_chunk_or_threads(folders: Any, variant: str, dtype: str) -> None:
    prompts = {slot: prompt(length, slot) for slot, length in enumerate((45, 3, 70, 18))}
    chosen: dict[str, Any] = {"dtype": dtype, "model_impl": "transformers"}
    together = Stepper(folders(variant), **chosen).greedy(prompts, 6)
    alone = Stepper(folders(variant), threads=1, block_size=32, **chosen)
    for slot, tokens in prompts.items():
        assert alone.greedy({0: tokens}, 6, chunk=7)[0] == together[slot]


def test_keys_and_values_of_different_sizes_are_padded(tmp_path: Path) -> None:
    folder = save(tmp_path, "deepseek_v3", **LATENT)
    stepper = Stepper(folder)
    tokens = prompt(30)
    assert_same_as_reference(folder, tokens, stepper.greedy({0: tokens}, 6)[0])


def test_layers_with_windows_get_groups_of_their_own(folders: Any) -> None:
    found = plan(folders("gemma3_text"), model_impl="transformers")
    assert [group.window for group in found.kv.groups] == [24, 0]


MIXED = {  # Gemma 4: a token takes 4 · 24 numbers of a sliding layer and 1 · 40 of a full one
    **SIZES,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "head_dim": 24,
    "num_global_key_value_heads": 1,
    "global_head_dim": 40,
    "attention_k_eq_v": True,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 512,
}


def test_layers_of_different_shapes_share_pages_that_hold_more_tokens_of_the_smaller(tmp_path: Path) -> None:
    folder = save(tmp_path, "gemma4_text", **MIXED)
    stepper = Stepper(folder)
    assert [(group.window, group.block_size) for group in stepper.plan.kv.groups] == [
        *[(24, 16)] * 3,
        (0, 32),
    ]
    tokens = prompt(70)
    drawn = stepper.greedy({0: tokens, 1: prompt(9)}, 12, chunk=20)[0]
    assert_same_as_reference(folder, tokens, drawn)
    assert Stepper(folder, block_size=8, threads=1).greedy({0: tokens}, 12)[0] == drawn


def test_frequencies_that_follow_the_length_are_fixed_for_the_longest_request(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 32,
    }
    sizes = {"original_max_position_embeddings": 32, "rope_parameters": scaling}
    folder = make_model("phi3", tmp_path, **sizes)
    short, long = prompt(20, 1), prompt(60, 2)
    stepper = Stepper(folder)
    assert "form up to 32 tokens" in stepper.plan.warnings[0]
    together = stepper.greedy({0: short, 1: long}, 4)
    assert stepper.greedy({0: short}, 4)[0] == together[0]
    assert_same_as_reference(folder, long, together[1])


@pytest.mark.parametrize(
    ("kind", "sizes", "layer"),
    [
        ("bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4}, r"h\.0\.self_attention \(BloomAttention\)"),
        (
            "xglm",
            {"d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 64},
            r"0\.self_attn \(XGLM",
        ),
        (
            "openai-gpt",
            {"n_embd": 64, "n_layer": 2, "n_head": 4},
            r"no layer that goes through the attention",
        ),
        ("mamba", {"hidden_size": 64, "num_hidden_layers": 2}, r"layers\.0 \(MambaBlock\)"),
        ("bert", SIZES, r"later tokens"),
    ],
)
def test_a_model_that_cannot_be_paged_is_refused_by_the_name_of_its_layer(
    tmp_path: Path, kind: str, sizes: dict[str, Any], layer: str
) -> None:
    folder = save(tmp_path, kind, **{**sizes, "vocab_size": 512})
    with pytest.raises(LoadError, match=layer) as refused:
        plan(folder)
    assert refused.value.code == "UnsupportedModel"


def test_attention_in_stretches_bounds_the_context(tmp_path: Path) -> None:
    families.tiny("llama4_text").save_pretrained(tmp_path)
    found = plan(tmp_path)
    assert found.max_model_len == families.LOCAL
    assert "stretches of 16 tokens" in found.warnings[-1]
    assert plan(tmp_path, max_model_len=8).max_model_len == 8
    with pytest.raises(
        LoadError, match="17 is too long: layers of the model attend in stretches of 16"
    ) as refused:
        plan(tmp_path, max_model_len=17)
    assert refused.value.argument == "max_model_len"
    tokens = [token % families.VOCABULARY for token in prompt(12)]
    stepper = Stepper(tmp_path, max_len=families.LOCAL)
    assert_same_as_reference(tmp_path, tokens, stepper.greedy({0: tokens}, 4, chunk=5)[0])


def test_a_window_is_that_of_the_mask_whatever_an_argument_says(tmp_path: Path) -> None:
    folder = save(tmp_path, "phimoe", **SIZES, num_key_value_heads=2, num_local_experts=4, sliding_window=24)
    stepper = Stepper(folder)
    assert [one.window for one in stepper.plan.route.attentions] == [24, 24]
    tokens = prompt(60)
    assert_same_as_reference(folder, tokens, stepper.greedy({0: tokens}, 6, chunk=20)[0])


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("recurrent_gemma", r"rg_lru \(RecurrentGemmaRglru\) keeps recurrent_states"),
        ("falcon_h1", "Layer 0 keeps conv_states"),
        ("deepseek_v32", "Layer 0 keeps indexer_keys"),
        ("bart", "counts positions"),
    ],
)
def test_a_state_beside_keys_and_values_is_refused(tmp_path: Path, kind: str, what: str) -> None:
    families.tiny(kind).save_pretrained(tmp_path)
    with pytest.raises(LoadError, match=what):
        Stepper(tmp_path)


OWN_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP
import torch

STEPS = []

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnMLP(LlamaMLP):
    def forward(self, hidden):
        return super().forward(CHANGED)

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        self.model.layers[0].mlp.__class__ = OwnMLP
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A Llama with code of its own, whose first MLP gets its hidden states changed."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", list(sys.path))

    def make(changed: str) -> Path:
        folder = make_model("llama", tmp_path / "own")
        (folder / "own.py").write_text(OWN_CODE.replace("CHANGED", changed))
        kinds = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}
        named = {"model_type": "own", "architectures": ["OwnForCausalLM"], "auto_map": kinds}
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **named}))
        return folder

    return make


def test_a_models_own_code_runs_behind_its_flag_alone(own: Callable[[str], Path], tmp_path: Path) -> None:
    folder = own("hidden")
    with pytest.raises(LoadError, match=r"--trust-remote-code runs that, with all rights") as refused:
        plan(folder)
    assert refused.value.argument == "trust_remote_code"
    assert not (tmp_path / "modules").exists()
    assert Stepper(folder, trust_remote_code=True).plan.route.architecture == "OwnForCausalLM"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changed",
    [
        "hidden + hidden.roll(1, dims=1)",
        "hidden + hidden.mean(1, keepdim=True)",
        "hidden + torch.arange(hidden.shape[1])[None, :, None] / 4",
        "hidden + (torch.arange(hidden.shape[1]) > 8)[None, :, None]",
        "hidden + hidden.mean(1, keepdim=True) * (hidden.shape[1] > 16)",
        "hidden * (STEPS.append(0) or len(STEPS))",
    ],
    ids=["mixed", "the mean of a step", "counted", "counted from 8 on", "many rows", "a state of no module"],
)
def test_what_shows_only_with_weights_is_found_before_a_model_serves(
    own: Callable[[str], Path], changed: str, dtype: str
) -> None:
    with pytest.raises(LoadError, match="keeps a state, counts positions or mixes rows"):
        Stepper(own(changed), trust_remote_code=True, dtype=dtype)


def test_frequencies_of_a_models_own_that_follow_the_farthest_row_are_found(
    own: Callable[[str], Path],
) -> None:
    folder = own("hidden")
    code = (folder / "own.py").read_text().replace("self.model.layers[0].mlp.__class__ = OwnMLP", "")
    code = code.replace("class OwnForCausalLM", f"{OWN_ROTATION}\nclass OwnForCausalLM")
    (folder / "own.py").write_text(f"{code}        self.model.rotary_emb.__class__ = OwnRotaryEmbedding\n")
    with pytest.raises(LoadError, match="keeps a state, counts positions or mixes rows"):
        Stepper(folder, trust_remote_code=True)


OWN_ROTATION = """
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

class OwnRotaryEmbedding(LlamaRotaryEmbedding):
    def forward(self, x, position_ids):
        longest = position_ids.max() + 1
        return super().forward(x, position_ids * torch.clamp(32 / longest, max=1))
"""


def test_each_attention_of_a_step_comes_once() -> None:
    module = torch.nn.Module()
    module.layer = torch.nn.Module()
    attends = [Attending(), Attending()]
    attentions = Attentions(module, ((Place("layer", turn), one) for turn, one in enumerate(attends)))
    rows = torch.zeros(1, 1, 2, 4)

    def many(times: int) -> None:
        for _ in range(times):
            attend(module.layer, rows, rows, rows, None)

    for _ in range(2):
        with attentions.step():
            many(2)
    assert [one.count for one in attends] == [2, 2]
    with pytest.raises(RuntimeError, match="1 times in a step, and before 2 times"), attentions.step():
        many(1)
    for _ in range(2):  # a step that has failed leaves the next one alone
        with pytest.raises(RuntimeError, match="3 times in a step"), attentions.step():
            many(3)


class Attending:
    count = 0

    def attend(self, module: Any, query: torch.Tensor, *_: Any) -> torch.Tensor:
        self.count += 1
        return query


def test_a_configuration_may_name_numbers_that_json_has_not(tmp_path: Path) -> None:
    folder = make_model("gpt2", tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "limit": [0.0, {"__float__": "Infinity"}]}))
    assert plan(folder).checkpoint.config["limit"] == [0.0, float("inf")]


def test_native_code_is_not_there_for_every_model(folders: Any) -> None:
    with pytest.raises(LoadError, match="OPTForCausalLM has no native code here"):
        plan(folders("opt"), model_impl="vllm")


def test_a_checkpoint_that_lacks_a_tensor_is_refused_by_its_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = make_model("gpt2", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.1.mlp.c_fc.weight"]
    save_file({**tensors, "stray": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(LoadError, match=r"missing: transformer\.h\.1\.mlp\.c_fc\.weight.*model: stray"):
        Stepper(folder)


def test_weights_are_let_go_as_they_are_packed() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES))
    weights = [weakref.ref(part.weight) for part in model.modules() if isinstance(part, torch.nn.Linear)]
    held: list[int] = []

    class Watched(Schemes):
        def of(self, form: Form | None, *, expert: bool = False) -> NewScheme:
            held.append(sum(weight() is not None for weight in weights))
            return super().of(form, expert=expert)

    pack_modules(model, Watched(FP32), torch.float32)
    assert held == list(range(len(weights), 0, -1))


def test_random_weights_make_a_model_that_runs(folders: Any) -> None:
    first = Stepper(folders("opt"), load_format="dummy").greedy({0: prompt(9)}, 3)
    assert first == Stepper(folders("opt"), load_format="dummy").greedy({0: prompt(9)}, 3)
