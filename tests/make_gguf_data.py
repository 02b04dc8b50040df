#!/usr/bin/env python3
"""Data of tests/test_gguf.cpp: small GGUF files of the reference cases, and blocks of every number format.

    python tests/make_gguf_data.py [--all DIR] [GOLDEN]     needs numpy and gguf (pip); T5 needs torch and transformers 4.57

Reads the cases of GOLDEN (tests/golden) and writes tests/golden-gguf/CASE.gguf, whose logits must be those of the case:
llama.cpp's names and orders of tensors, its keys, the weights as they are. CASE@what.gguf is another spelling of a case. With
--all every case goes to DIR, more than are committed. Also writes tests/data/ggml_blocks.hpp: random blocks, their values as
gguf's own NumPy code gives them.
"""
import argparse, json, os, sys
import numpy as np
import gguf
from gguf import GGMLQuantizationType as Q

HERE = os.path.dirname(os.path.abspath(__file__))


def load(folder):
    """Every tensor of a case: name -> array; bf16 as raw uint16 in a 1-tuple."""
    files = sorted(f for f in os.listdir(folder) if f.endswith(".safetensors"))
    out = {}
    for f in files:
        data = open(f"{folder}/{f}", "rb").read()
        n = int.from_bytes(data[:8], "little")
        for name, t in json.loads(data[8:8 + n]).items():
            if name == "__metadata__":
                continue
            a, b = t["data_offsets"]
            raw = data[8 + n + a:8 + n + b]
            dtype = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}[t["dtype"]]
            x = np.frombuffer(raw, dtype).reshape(t["shape"])
            out[name] = (x,) if t["dtype"] == "BF16" else x
    return out


def pairs(x, heads):
    """Rows of q or k: half-split rotation -> neighbouring pairs, as converted Llama files have them."""
    if isinstance(x, tuple):
        return (pairs(x[0], heads),)
    d = x.shape[0] // heads
    return x.reshape(heads, 2, d // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def ungroup(x, kv, d):
    """For each kv head its queries, its key, its value -> all queries, all keys, all values."""
    x = x.reshape(kv, -1, d, *x.shape[1:])
    return np.concatenate([x[:, :-2].reshape(-1, *x.shape[3:]), x[:, -2].reshape(-1, *x.shape[3:]), x[:, -1].reshape(-1, *x.shape[3:])])


class Case:
    def __init__(self, name, golden, arch):
        self.folder = f"{golden}/{name}"
        self.c = json.load(open(f"{self.folder}/config.json"))
        self.t = load(self.folder)
        self.arch, self.keys, self.out = arch, {}, {}
        c = self.c
        first = lambda *names: next((c[n] for n in names if c.get(n) is not None), None)
        self.layers = first("num_hidden_layers", "n_layer", "n_layers", "num_layers")
        self.dim = first("hidden_size", "n_embd", "d_model", "dim")
        self.heads = first("num_attention_heads", "n_head", "n_heads", "num_heads")
        self.kv = first("num_key_value_heads") or self.heads
        self.map = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), self.layers)
        self.key("block_count", self.layers)
        self.key("context_length", first("max_position_embeddings", "n_positions", "max_seq_len", "seq_length") or 512)
        self.key("embedding_length", self.dim)
        self.key("vocab_size", c["vocab_size"])
        self.key("feed_forward_length", first("intermediate_size", "n_inner", "ffn_hidden_size", "d_ff", "hidden_dim") or 4 * self.dim)
        self.key("attention.head_count", self.heads)
        self.key("attention.head_count_kv", self.kv)
        if first("head_dim"):
            self.key("attention.key_length", c["head_dim"])
            self.key("attention.value_length", c["head_dim"])
        if first("rms_norm_eps") is not None:
            self.key("attention.layer_norm_rms_epsilon", float(c["rms_norm_eps"]))
        eps = first("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
        if eps is not None:
            self.key("attention.layer_norm_epsilon", float(eps))
        theta = first("global_rope_theta", "rope_theta", "rotary_emb_base")
        if theta is not None:
            self.key("rope.freq_base", float(theta))
        if first("partial_rotary_factor", "rotary_pct"):
            self.key("rope.dimension_count", int((c.get("head_dim") or self.dim // self.heads) * first("partial_rotary_factor", "rotary_pct")))
        r = c.get("rope_scaling") or {}
        kind = r.get("rope_type", r.get("type"))
        if kind in ("linear", "yarn"):
            self.key("rope.scaling.type", kind)
            self.key("rope.scaling.factor", float(r["factor"]))
        if kind == "yarn":
            self.key("rope.scaling.original_context_length", r["original_max_position_embeddings"])
            for k in ("beta_fast", "beta_slow"):
                if k in r:
                    self.key("rope.scaling.yarn_" + k, float(r[k]))
        if kind == "llama3":
            self.out["rope_freqs.weight"] = self.llama3(r)
        for k, name in (("num_local_experts", "expert_count"), ("num_experts", "expert_count"), ("n_routed_experts", "expert_count"),
                        ("num_experts_per_tok", "expert_used_count")):
            if c.get(k):
                self.key(name, c[k])

    def key(self, name, value):
        self.keys[name] = value

    def llama3(self, r):
        c = self.c
        d = c.get("head_dim") or self.dim // self.heads
        freqs = 1.0 / (c["rope_theta"] ** (np.arange(0, d, 2, dtype=np.float32) / d))
        low = r["original_max_position_embeddings"] / r["low_freq_factor"]
        high = r["original_max_position_embeddings"] / r["high_freq_factor"]
        out = []
        for f in freqs:
            wave = 2 * np.pi / f
            smooth = (r["original_max_position_embeddings"] / wave - r["low_freq_factor"]) / (r["high_freq_factor"] - r["low_freq_factor"])
            out.append(1 if wave < high else r["factor"] if wave > low else 1 / ((1 - smooth) / r["factor"] + smooth))
        return np.array(out, np.float32)

    def put(self, hf, x):
        name = self.map.get_name(hf, try_suffixes=(".weight", ".bias"))
        assert name, hf
        assert name not in self.out, (hf, name)
        self.out[name] = x

    def window(self, value, pattern=None):
        self.key("attention.sliding_window", value)
        if pattern is not None:
            self.key("attention.sliding_window_pattern", pattern)

    def write(self, path, split=0, each=False):
        w = gguf.GGUFWriter(path, self.arch, split_max_tensors=split)
        for k, v in self.keys.items():
            k = f"{self.arch}.{k}"
            if isinstance(v, bool):
                w.add_bool(k, v)
            elif isinstance(v, int):
                w.add_uint32(k, v)
            elif isinstance(v, float):
                w.add_float32(k, v)
            elif isinstance(v, str):
                w.add_string(k, v)
            else:
                w.add_array(k, v)
        w.add_string("tokenizer.ggml.model", "none")
        for name, x in self.out.items():
            if each and "_exps.weight" in name:              # as old Mixtral files have them
                for i in range(x.shape[0]):
                    w.add_tensor(name.replace("_exps", f".{i}"), np.ascontiguousarray(x[i]))
            elif isinstance(x, tuple) and x[0].ndim == 1:    # vectors stay float32 in every file
                w.add_tensor(name, (x[0].astype(np.uint32) << 16).view(np.float32))
            elif isinstance(x, tuple):
                w.add_tensor(name, np.ascontiguousarray(x[0]).view(np.uint8), raw_dtype=Q.BF16)
            else:
                w.add_tensor(name, np.ascontiguousarray(x) if x.ndim > 1 else np.ascontiguousarray(x.astype(np.float32)))
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


# ---- One function for each way of converting -------------------------------------------------------------------------

def plain(k, rename=lambda n: n, change=lambda n, x: x, skip=()):
    """Tensors as they are, experts stacked."""
    experts = {}
    for name, x in k.t.items():
        if any(s in name for s in skip):
            continue
        x = change(name, x)
        if x is None:
            continue
        if ".experts." in name and name.split(".experts.")[1][0].isdigit():
            before, after = name.split(".experts.")
            number, rest = after.split(".", 1)
            experts.setdefault(f"{before}.experts.{rest}", {})[int(number)] = x
            continue
        k.put(rename(name), x)
    for name, parts in experts.items():
        k.put(rename(name), np.stack([parts[i] for i in range(len(parts))]))


def llama(k):
    def change(name, x):
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            return pairs(x, k.heads)
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            return pairs(x, k.kv)
        return x
    if k.c.get("sliding_window"):
        k.window(k.c["sliding_window"])
    plain(k, change=change)


def granite(k):
    for hf, name in (("embedding_multiplier", "embedding_scale"), ("attention_multiplier", "attention.scale"),
                     ("residual_multiplier", "residual_scale"), ("logits_scaling", "logit_scale")):
        k.key(name, float(k.c[hf]))
    for name in list(k.t):
        if name.endswith("input_linear.weight"):
            x = k.t.pop(name)
            k.put(name.replace("block_sparse_moe.input_linear", "mlp.experts.gate_proj"), x[:, :x.shape[1] // 2])
            k.put(name.replace("block_sparse_moe.input_linear", "mlp.experts.up_proj"), x[:, x.shape[1] // 2:])
    llama(k)


def neox(k):
    """Half-split rotation, nothing to do."""
    if k.c.get("sliding_window") and k.c.get("use_sliding_window", True):
        types = k.c.get("layer_types")
        k.window(k.c["sliding_window"], [t == "sliding_attention" for t in types] if types else None)
    if k.c.get("moe_intermediate_size"):
        k.key("expert_feed_forward_length", k.c["moe_intermediate_size"])
    if k.c.get("shared_expert_intermediate_size"):
        k.key("expert_shared_feed_forward_length", k.c["shared_expert_intermediate_size"])
    plain(k)


def qwen3moe(k):
    """llama.cpp has no dense layers here: those keep the names of Qwen2's."""
    for name in list(k.t):
        for part in ("gate", "up", "down"):
            if f"mlp.{part}_proj" in name:
                k.out[f"blk.{name.split('.')[2]}.ffn_{part}.weight"] = k.t.pop(name)
    neox(k)


def smollm3(k):
    k.key("attention.rope_pattern", [bool(x) for x in k.c["no_rope_layers"]])
    k.c.pop("sliding_window", None)
    llama(k)


def phi3(k):
    r = k.c.get("rope_scaling") or {}
    if "long_factor" in r:
        original = k.c["original_max_position_embeddings"]
        scale = k.c["max_position_embeddings"] / original
        k.key("rope.scaling.original_context_length", original)
        k.key("rope.scaling.attn_factor", float(np.sqrt(1 + np.log(scale) / np.log(original))))
        k.out["rope_factors_long.weight"] = np.array(r["long_factor"], np.float32)
        k.out["rope_factors_short.weight"] = np.array(r["short_factor"], np.float32)
    k.window(k.c.get("sliding_window") or 0)
    plain(k)


def plus_one(k, rename=lambda n: n):
    plain(k, rename, lambda n, x: x + 1 if n.endswith("norm.weight") or (k.arch == "nemotron" and n.endswith("layernorm.weight")) else x)


def gemma(k):
    c = k.c
    if c.get("attn_logit_softcapping"):
        k.key("attn_logit_softcapping", float(c["attn_logit_softcapping"]))
    if c.get("final_logit_softcapping"):
        k.key("final_logit_softcapping", float(c["final_logit_softcapping"]))
    if c.get("query_pre_attn_scalar"):
        k.key("attention.scale", float(c["query_pre_attn_scalar"]) ** -0.5)
    if c.get("sliding_window"):
        k.window(c["sliding_window"], [t == "sliding_attention" for t in c["layer_types"]])
    if c.get("rope_local_base_freq"):
        k.key("rope.freq_base_swa", float(c["rope_local_base_freq"]))
    plus_one(k)


def stablelm(k):
    k.key("use_parallel_residual", bool(k.c["use_parallel_residual"]))
    plain(k)


def cohere(k):
    k.key("logit_scale", float(k.c["logit_scale"]))
    k.key("rope.scaling.type", "none")
    plain(k)


def olmo(k):
    k.key("attention.layer_norm_epsilon", 1e-5)
    k.key("attention.clamp_kqv", float(k.c["clip_qkv"]))
    llama(k)


def chameleon(k):
    k.key("swin_norm", bool(k.c["swin_norm"]))
    d = k.dim // k.heads
    for name in list(k.t):
        for part, heads in (("q_norm", k.heads), ("k_norm", k.kv)):
            if f".{part}." in name:
                x = k.t[name].reshape(-1, d)
                x = x.reshape(-1, 2, d // 2).swapaxes(1, 2).reshape(-1, d)
                k.t[name] = np.ascontiguousarray(np.broadcast_to(x, (heads, d)))
    llama(k)


def llama4(k):
    c = k.c
    k.key("interleave_moe_layer_step", c["interleave_moe_layer_step"])
    k.key("feed_forward_length", c["intermediate_size_mlp"])
    k.key("expert_feed_forward_length", c["intermediate_size"])
    k.window(c["attention_chunk_size"], [bool(x) for x in c["no_rope_layers"]])
    k.key("attention.temperature_length", c["floor_scale"])
    k.key("attention.temperature_scale", float(c["attn_scale"]))
    for name in list(k.t):
        if name.endswith("experts.gate_up_proj"):
            x = k.t.pop(name).swapaxes(1, 2)
            k.put(name.replace("gate_up_proj", "gate_proj.weight"), x[:, :x.shape[1] // 2])
            k.put(name.replace("gate_up_proj", "up_proj.weight"), x[:, x.shape[1] // 2:])
        elif name.endswith("experts.down_proj"):
            k.put(name + ".weight", k.t.pop(name).swapaxes(1, 2))
    plain(k)


def gpt_oss(k):
    k.key("expert_feed_forward_length", k.c["intermediate_size"])
    k.window(k.c["sliding_window"])
    for name in list(k.t):
        if "gate_up_proj" in name:
            x = k.t.pop(name)
            x = x if name.endswith("_bias") else x.swapaxes(1, 2)
            end = ".bias" if name.endswith("_bias") else ".weight"
            base = name.replace("_bias", "")
            k.put(base.replace("gate_up_proj", "gate_proj") + end, x[:, ::2])
            k.put(base.replace("gate_up_proj", "up_proj") + end, x[:, 1::2])
        elif "experts.down_proj" in name:
            x = k.t.pop(name)
            k.put(name.replace("_bias", "") + (".bias" if name.endswith("_bias") else ".weight"), x if name.endswith("_bias") else x.swapaxes(1, 2))
        elif name.endswith("sinks"):
            k.put(name + ".weight", k.t.pop(name))
    plain(k)


def deepseek(k, joined=False):
    c = k.c
    nope, rope, v, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    k.key("leading_dense_block_count", c["first_k_dense_replace"])
    k.key("attention.q_lora_rank", c["q_lora_rank"])
    k.key("attention.kv_lora_rank", rank)
    k.key("rope.dimension_count", rope)
    k.key("expert_feed_forward_length", c["moe_intermediate_size"])
    k.key("expert_shared_count", c["n_shared_experts"])
    k.key("expert_weights_scale", float(c["routed_scaling_factor"]))
    k.key("expert_weights_norm", bool(c.get("norm_topk_prob", False)))
    v3 = k.c["model_type"] == "deepseek_v3"
    k.key("expert_gating_func", 2 if v3 else 1)
    if c["n_group"] > 1:
        k.key("expert_group_count", c["n_group"])
        k.key("expert_group_used_count", c["topk_group"])
    if joined:                                               # older files: no absorbed form
        k.key("attention.key_length", nope + rope)
        k.key("attention.value_length", v)
    else:
        k.key("attention.head_count_kv", 1)
        k.key("attention.key_length", rank + rope)
        k.key("attention.value_length", rank)
        k.key("attention.key_length_mla", nope + rope)
        k.key("attention.value_length_mla", v)
    r = c.get("rope_scaling") or {}
    if "mscale_all_dim" in r:
        k.key("rope.scaling.yarn_log_multiplier", 0.1 * r["mscale_all_dim"])
        mscale = lambda m: 0.1 * m * np.log(r["factor"]) + 1
        k.key("rope.scaling.yarn_attn_factor", float(mscale(r["mscale"]) / mscale(r["mscale_all_dim"])))
    for name in list(k.t):
        if name.endswith("kv_b_proj.weight") and not joined:
            x = k.t.pop(name).reshape(k.heads, nope + v, rank)
            k.put(name.replace("kv_b_proj", "k_b_proj"), x[:, :nope].swapaxes(1, 2))
            k.put(name.replace("kv_b_proj", "v_b_proj"), x[:, nope:])
        elif name.endswith("e_score_correction_bias"):
            k.out[f"blk.{name.split('.')[2]}.exp_probs_b.bias"] = k.t.pop(name)
    plain(k)


def gpt2(k):
    def change(name, x):
        return x.T if name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")) else x
    plain(k, change=change, skip=(".attn.bias", ".attn.masked_bias"))


def gptj(k):
    k.key("rope.dimension_count", k.c["rotary_dim"])
    plain(k)


def grouped(k):
    """GPT-NeoX, BLOOM, Falcon: query_key_value taken apart by heads."""
    d = k.dim // k.heads
    kv = 1 if k.arch == "falcon" else k.heads
    if k.arch == "falcon":
        k.key("attention.head_count_kv", 1)
    if k.arch == "gptneox":
        k.key("use_parallel_residual", bool(k.c["use_parallel_residual"]))
    def change(name, x):
        return ungroup(x, kv, d) if "query_key_value" in name else x
    plain(k, lambda n: n.replace("transformer.", "") if k.arch == "bloom" else n, change)


def mpt(k):
    k.key("attention.max_alibi_bias", 8.0)
    plain(k)


def bert(k):
    def rename(name):
        for start in ("bert.", "roberta.", "distilbert."):
            name = name[len(start):] if name.startswith(start) else name
        return name
    k.key("attention.causal", False)
    if k.c["model_type"] == "roberta":
        offset = k.c["pad_token_id"] + 1
        name = "roberta.embeddings.position_embeddings.weight"
        k.t[name] = k.t[name][offset:]
        k.key("context_length", k.c["max_position_embeddings"] - offset)
    if k.c["model_type"] == "distilbert":
        k.key("attention.layer_norm_epsilon", 1e-12)
    if "classifier.weight" in k.t:                           # a classifier, as llama.cpp has those with two matrices
        k.key("pooling_type", 4)
        for hf, name in (("bert.pooler.dense", "cls"), ("classifier", "cls.output")):
            for end in (".weight", ".bias"):
                k.out[name + end] = k.t[hf + end]
    plain(k, rename, skip=("pooler.", "cls.", "lm_head.", "vocab_", "classifier."))


def modern_bert(k):
    k.key("attention.causal", False)
    k.window(k.c["local_attention"], k.c["global_attn_every_n_layers"])
    k.key("rope.freq_base_swa", float(k.c["local_rope_theta"]))
    k.key("hidden_activation", k.c["hidden_activation"])
    plain(k, lambda n: n.replace("model.", "", 1), skip=("head.", "decoder."))


def t5(k):
    c = k.c
    k.key("decoder_block_count", c["num_decoder_layers"])
    k.key("attention.key_length", c["d_kv"])
    k.key("attention.value_length", c["d_kv"])
    k.key("attention.layer_norm_rms_epsilon", float(c["layer_norm_epsilon"]))
    k.key("attention.relative_buckets_count", c["relative_attention_num_buckets"])
    k.key("decoder_start_token_id", c["decoder_start_token_id"])
    plain(k, skip=("embed_tokens",))


def t5_expected(golden, name, out):
    """llama.cpp's files cannot say another distance than 128: the same weights once more, with that one."""
    import torch, transformers
    kind = "UMT5" if name == "umt5" else "T5"
    config = getattr(transformers, kind + "Config").from_pretrained(f"{golden}/{name}", relative_attention_max_distance=128)
    model = getattr(transformers, kind + "ForConditionalGeneration").from_pretrained(f"{golden}/{name}", config=config, dtype=torch.float32).eval()
    expected = json.load(open(f"{golden}/{name}/expected.json"))
    os.makedirs(f"{out}/{name}", exist_ok=True)
    for e in expected["inputs"]:
        with torch.no_grad():
            got = model(input_ids=torch.tensor(e["input_ids"]), decoder_input_ids=torch.tensor(e["decoder_input_ids"]),
                        attention_mask=torch.tensor(e["attention_mask"]) if "attention_mask" in e else None).logits
        e["expected"] = {"logits": f"{e['name']}.logits.npy"}
        np.save(f"{out}/{name}/{e['name']}.logits.npy", got.numpy().astype(np.float32))
    keep = {k: expected[k] for k in ("kind", "inputs", "noise")}
    json.dump(keep, open(f"{out}/{name}/expected.json", "w"))


# name of the case -> architecture, how; the first list is committed
COMMITTED = {
    "llama-rope-llama3": ("llama", llama), "llama-f16": ("llama", llama), "llama-bf16": ("llama", llama),
    "mixtral@each": ("llama", llama), "qwen2moe-shared": ("qwen2moe", neox), "qwen3moe": ("qwen3moe", qwen3moe),
    "phi": ("phi2", plain), "phi3-longrope": ("phi3", phi3), "gemma2": ("gemma2", gemma), "gemma3": ("gemma3", gemma), "gpt2": ("gpt2", gpt2),
    "gptneox-parallel": ("gptneox", grouped), "falcon-mqa-parallel": ("falcon", grouped), "stablelm": ("stablelm", stablelm),
    "olmo-nonparam-ln": ("olmo", olmo), "olmo3": ("olmo2", neox), "granitemoe": ("granitemoe", granite), "cohere": ("command-r", cohere),
    "deepseek-v2@joined": ("deepseek2", lambda k: deepseek(k, True)), "deepseek-v3-yarn": ("deepseek2", deepseek), "gpt-oss-sinks": ("gpt-oss", gpt_oss),
    "bert-cls": ("bert", bert), "modernbert-mlm": ("modern-bert", modern_bert), "t5-v1_1": ("t5", t5), "bloom-alibi": ("bloom", grouped),
    "glm4-sandwich": ("glm4", plain),
}
MORE = {
    "llama-mha": ("llama", llama), "llama-gqa": ("llama", llama), "llama-mqa": ("llama", llama), "llama-tied": ("llama", llama),
    "llama-attnbias": ("llama", llama), "llama-headdim": ("llama", llama), "llama-rope-linear": ("llama", llama), "llama-rope-yarn": ("llama", llama),
    "mistral-sliding-window": ("llama", llama), "mixtral": ("llama", llama), "qwen2": ("qwen2", neox), "qwen3": ("qwen3", neox), "phi3": ("phi3", phi3),
    "granite": ("granite", granite), "smollm3-nope": ("smollm3", smollm3), "starcoder2": ("starcoder2", neox), "nemotron": ("nemotron", plus_one),
    "chameleon-qknorm": ("chameleon", chameleon), "gptneox-sequential": ("gptneox", grouped), "gptj": ("gptj", gptj), "mpt-alibi": ("mpt", mpt),
    "olmoe": ("olmoe", neox), "deepseek-v2": ("deepseek2", deepseek), "deepseek-v3": ("deepseek2", deepseek), "llama4-text": ("llama4", llama4),
    "gemma": ("gemma", gemma), "olmo2": ("olmo2", neox), "bert-mlm": ("bert", bert), "roberta-mlm": ("bert", bert),
    "distilbert-mlm": ("bert", bert), "t5": ("t5", t5), "umt5": ("t5", t5),
}


def make(name, golden, out, arch, how):
    case = name.split("@")[0]
    k = Case(case, golden, arch)
    how(k)
    k.write(f"{out}/{name}.gguf", each=name.endswith("@each"))
    if arch == "t5":
        t5_expected(golden, case, out)


# ---- Blocks ----------------------------------------------------------------------------------------------------------

def blocks(path):
    rng = np.random.default_rng(3)
    text = ["// Made by tests/make_gguf_data.py: blocks of ggml's number formats, and their values as gguf's NumPy code gives them.",
            "// clang-format off", "struct Block { uint32_t type; std::vector<uint8_t> bytes; std::vector<uint32_t> bits; };",
            "static const Block blocks[] = {"]
    halves = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2],
              "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
    for name in "F32 F16 BF16 F64 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ4_NL IQ4_XS MXFP4".split():
        t = Q[name]
        block, size = gguf.GGML_QUANT_SIZES[t]
        if block == 1:                                       # plain numbers, the odd ones too
            x = np.concatenate([rng.normal(0, 1, 10), [0.0, -0.0, 1e-7, -6e-8, 65504.0, 1.0]])
            b = {"F32": x.astype(np.float32), "F16": x.astype(np.float16), "F64": x,
                 "BF16": (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)}[name].view(np.uint8).reshape(1, -1)
        else:
            b = rng.integers(0, 256, (2 if block == 32 else 1, size), dtype=np.uint8)
            for at in halves.get(name, []):                  # scales that a model could have
                b[:, at:at + 2] = rng.uniform(0.001, 0.1, (len(b), 1)).astype(np.float16).view(np.uint8)
            if name == "Q8_K":
                b[:, :4] = rng.uniform(0.001, 0.1, (1, 1)).astype(np.float32).view(np.uint8)
            if name == "MXFP4":
                b[:, 0] = [120, 126]
        if name == "Q8_K":
            v = b[:, :4].copy().view(np.float32) * b[:, 4:260].copy().view(np.int8).astype(np.float32)
        elif block == 1 and name != "BF16":
            v = b.view({"F32": np.float32, "F16": np.float16, "F64": np.float64}[name]).astype(np.float32)
        else:
            v = gguf.quants.dequantize(b, t)
        text.append(f"    {{{int(t)}, {{{', '.join(map(str, b.ravel()))}}},")
        text.append(f"     {{{', '.join(f'0x{w:x}' for w in np.ascontiguousarray(v, np.float32).ravel().view(np.uint32))}}}}},")
    text.append("};")
    out = []
    for line in text:                                        # at most 120 columns
        while len(line) > 118:
            cut = line.rfind(",", 0, 117) + 1
            out.append(line[:cut])
            line = "     " + line[cut:].lstrip()
        out.append(line)
    open(path, "w").write("\n".join(out) + "\n")


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("golden", nargs="?", default=f"{HERE}/golden")
    ap.add_argument("--all", help="write every case into this folder instead")
    ap.add_argument("--only", default="", help="cases whose names start with this")
    a = ap.parse_args()
    out = a.all or f"{HERE}/golden-gguf"
    os.makedirs(out, exist_ok=True)
    for name, (arch, how) in {**COMMITTED, **(MORE if a.all else {})}.items():
        if name.startswith(a.only):
            make(name, a.golden, out, arch, how)
    if not a.all and not a.only:
        k = Case("llama-mqa", a.golden, "llama")             # a split model
        llama(k)
        k.write(f"{out}/llama-mqa.gguf", split=12)
        blocks(f"{HERE}/data/ggml_blocks.hpp")


if __name__ == "__main__":
    main()
