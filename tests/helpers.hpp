// tests/helpers.hpp - small random models for the tests, and what every suite needs
//
// The weights come from a counter and integer arithmetic alone, so that tests/make_data.py makes the same ones in
// Python.
#ifndef TRANSFORMER_TESTS_HELPERS_HPP
#define TRANSFORMER_TESTS_HELPERS_HPP

#include "doctest.h"
#include "transformer.hpp"
#include "weights/import.hpp"

#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace test {

using transformer::Activation;
using transformer::Code;
using transformer::Config;
using transformer::DType;
using transformer::Input;
using transformer::Isa;
using transformer::Model;
using transformer::NormKind;
using transformer::Options;
using transformer::Role;
using transformer::Rows;
using transformer::Session;
using transformer::Status;
using weights::AlignedBytes;

// ---- Numbers --------------------------------------------------------------------------------------------------------

inline uint64_t fnv1a(const void* data, size_t n, uint64_t hash = 0xcbf29ce484222325u)
{
    const unsigned char* const p = static_cast<const unsigned char*>(data);
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}
inline uint64_t scramble(uint64_t x)                           // the finalizer of splitmix64
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
// Number i of a sequence: a multiple of 2^-23 in [-1, 1).
inline float unit(uint64_t seed, uint64_t i)
{
    const int32_t bits = static_cast<int32_t>(scramble(seed + i * 0x9e3779b97f4a7c15u) >> 40);
    return static_cast<float>(bits - (1 << 23)) / 8388608.0f;
}

struct Random {
    uint64_t seed = 1, i = 0;
    uint64_t bits() { return scramble(seed + i++ * 0x9e3779b97f4a7c15u); }
    uint32_t below(uint32_t n) { return static_cast<uint32_t>((bits() >> 32) * n >> 32); }
    uint32_t between(uint32_t low, uint32_t high) { return low + below(high - low + 1); }
    bool chance(uint32_t one_in) { return below(one_in) == 0; }
    float number() { return unit(seed, i++); }
    float pattern()                                            // any bit pattern of a float
    {
        const uint32_t u = static_cast<uint32_t>(bits());
        float x;
        std::memcpy(&x, &u, 4);
        return x;
    }
};

inline uint32_t bits_of(float x)
{
    uint32_t u;
    std::memcpy(&u, &x, 4);
    return u;
}
inline float float_of(uint32_t u)
{
    float x;
    std::memcpy(&x, &u, 4);
    return x;
}
inline bool is_nan(float x) { return (bits_of(x) & 0x7fffffffu) > 0x7f800000u; }
// The promise of equal bits: payloads of NaN are outside it.
inline bool same(float a, float b) { return bits_of(a) == bits_of(b) || (is_nan(a) && is_nan(b)); }
inline size_t differences(const float* a, const float* b, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += !same(a[i], b[i]);
    return count;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b)
{
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- Models ---------------------------------------------------------------------------------------------------------

struct Weights {
    uint32_t rows = 0, cols = 0, count = 1;
    std::vector<float> values;
    DType stored = DType::f32;
    uint64_t identity = 0;
    float at(uint32_t matrix, uint32_t row, uint32_t col) const
    {
        return values[(size_t{matrix} * rows + row) * cols + col];
    }
};

enum class QkNorm { none, one_head, every_head, full }; // one weight for all heads; one a head; one norm over all heads
enum class Head { none, tied, own };

// Which optional tensors a stack has; the sizes stand in Config.
struct Slots {
    bool pre = true, post = false, out = false;                // norms of attention, cross attention and feed-forward
    bool final_norm = true, embedding_norm = false, norm_projected = false, norm_shift = false;
    bool attention_bias = false, output_bias = false, ffn_bias = false, head_bias = false;
    bool gate = true, sinks = false, alibi = false, relative_bias = false, relative_keys = false, router_bias = false,
         shared_router = false;
    QkNorm qk = QkNorm::none;
    Head head = Head::own;
    uint32_t positions = 0;                                    // rows of the learned positions
    bool wide_positions = false;                               // they are D wide although the embedding is not
    uint32_t rope_rows = 0, head_dense = 0, dense_layers = 0;  // the first layers without experts
    bool head_norm = false;
    std::vector<uint8_t> layer_flags;
};

struct TestModel {
    Config main, encoder;
    std::map<uint64_t, Weights> tensors;                       // by key(): the order of the checkpoint
    weights::VocabularySource vocabulary;
    uint64_t seed = 0;

    static uint64_t key(uint32_t stack, uint32_t layer, uint32_t role)
    {
        return uint64_t{stack} << 40 | uint64_t{layer} << 16 | uint64_t{role & 0x7fu} << 1 | role >> 7;
    }
    const Weights* get(uint32_t stack, uint32_t layer, Role role, bool bias = false) const
    {
        const auto found = tensors.find(key(stack, layer, static_cast<uint32_t>(role) | (bias ? 0x80u : 0u)));
        return found == tensors.end() ? nullptr : &found->second;
    }
    Weights& at(uint32_t stack, uint32_t layer, Role role, bool bias = false)
    {
        return tensors.at(key(stack, layer, static_cast<uint32_t>(role) | (bias ? 0x80u : 0u)));
    }
    void drop(uint32_t stack, uint32_t layer, Role role, bool bias = false)
    {
        tensors.erase(key(stack, layer, static_cast<uint32_t>(role) | (bias ? 0x80u : 0u)));
    }
    Weights& add(uint32_t stack, uint32_t layer, Role role, uint32_t rows, uint32_t cols, uint32_t count = 1,
                 bool bias = false)
    {
        Weights w;
        w.rows = rows;
        w.cols = cols;
        w.count = count;
        w.values.resize(size_t{rows} * cols * count);
        const std::string name = std::to_string(stack) + "/" + std::to_string(layer) + "/" +
                                 transformer::role_name(static_cast<uint32_t>(role)) + (bias ? "/b" : "");
        const uint64_t from = scramble(fnv1a(name.data(), name.size()) + seed);
        float scale = 2.0f; // 2^(1 - half the bits of cols): what comes out is about as large as what went in
        for (uint32_t n = cols; n > 1; n /= 4) scale /= 2;
        for (size_t i = 0; i < w.values.size(); i++) {
            const float u = unit(from, i);
            w.values[i] =
                bias ? u / 4 : init(role, u, scale, static_cast<uint32_t>(i % cols), static_cast<uint32_t>(i / cols));
        }
        return tensors[key(stack, layer, static_cast<uint32_t>(role) | (bias ? 0x80u : 0u))] = std::move(w);
    }

    weights::Source source() const
    {
        weights::Source s;
        s.kind = "test";
        s.main = main;
        s.encoder = encoder;
        s.vocabulary = vocabulary;
        for (const auto& entry : tensors) {
            const Weights* const w = &entry.second;
            weights::TensorSource t;
            t.stack = static_cast<uint32_t>(entry.first >> 40);
            t.layer = static_cast<uint32_t>(entry.first >> 16 & 0xffff);
            t.role = static_cast<uint8_t>((entry.first >> 1 & 0x7f) | (entry.first & 1) << 7);
            t.rows = w->rows;
            t.cols = w->cols;
            t.count = w->count;
            t.stored = w->stored;
            t.identity = w->identity;
            t.read = [w](uint32_t matrix, uint32_t first, uint32_t n, float* out) {
                std::memcpy(out, &w->values[(size_t{matrix} * w->rows + first) * w->cols],
                            size_t{n} * w->cols * sizeof(float));
            };
            s.tensors.push_back(std::move(t));
        }
        return s;
    }
    AlignedBytes checkpoint() const { return weights::write_to_memory(source(), {}); }
    AlignedBytes checkpoint(DType type) const
    {
        weights::WriteOptions options;
        options.convert = true;
        options.type = type;
        return weights::write_to_memory(source(), options);
    }
    void store_as(DType type) // every matrix, the embedding too: what convert does not do for 4 bits
    {
        for (auto& entry : tensors) entry.second.stored = type;
    }

private:
    static float init(Role role, float u, float scale, uint32_t col, uint32_t row)
    {
        switch (role) {
        case Role::attn_norm_pre: case Role::attn_norm_post: case Role::attn_norm_out: case Role::cross_norm_pre:
        case Role::cross_norm_post: case Role::cross_norm_out: case Role::ffn_norm_pre: case Role::ffn_norm_post:
        case Role::ffn_norm_out: case Role::embedding_norm: case Role::final_norm: case Role::head_norm:
        case Role::q_norm: case Role::k_norm: case Role::q_a_norm: case Role::kv_a_norm: return 1 + u / 4;
        case Role::token_embedding: case Role::position_embedding: case Role::type_embedding: case Role::sinks:
        case Role::relative_bias: return u;
        case Role::router_bias: return u / 4;
        case Role::alibi_slopes: return 1 / static_cast<float>(2u << col % 8);
        case Role::rope_freqs: return (1 + u / 4) / static_cast<float>((1 + col) * (1 + row));
        default: return u * scale;
        }
    }
};

inline Config small_config(uint32_t dim, uint32_t hidden, uint32_t layers, uint32_t heads, uint32_t kv_heads,
                           uint32_t head_dim, uint32_t vocab)
{
    Config c;
    c.dim = c.embedding_dim = dim;
    c.hidden_dim = hidden;
    c.n_layers = layers;
    c.n_heads = heads;
    c.n_kv_heads = kv_heads;
    c.head_dim = c.v_head_dim = c.rope_dim = head_dim;
    c.vocab_size = c.n_outputs = vocab;
    c.max_seq_len = 512;
    return c;
}

inline void add_stack(TestModel& m, uint32_t stack, const Slots& s)
{
    const Config& c = stack ? m.encoder : m.main;
    const uint32_t d = c.dim, e = c.embedding_dim, q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim,
                   vv = c.n_kv_heads * c.v_head_dim;
    const uint32_t mixed = c.n_heads * (c.kv_lora_rank ? c.mla_v_head_dim : c.v_head_dim),
                   columns = 2 * c.relative_distance + 1;
    const auto linear = [&](uint32_t layer, Role role, uint32_t rows, uint32_t cols, bool bias, uint32_t count = 1) {
        m.add(stack, layer, role, rows, cols, count);
        if (bias) m.add(stack, layer, role, 1, rows, count, true);
    };
    const auto norm = [&](bool there, uint32_t layer, Role role, uint32_t rows, uint32_t cols) {
        if (there) m.add(stack, layer, role, rows, cols);
        if (there && s.norm_shift) m.add(stack, layer, role, rows, cols, 1, true);
    };
    if (c.vocab_size) linear(0, Role::token_embedding, c.vocab_size, e, false);
    if (c.n_types) linear(0, Role::type_embedding, c.n_types, e, false);
    if (s.positions) linear(0, Role::position_embedding, s.positions, s.wide_positions ? d : e, false);
    norm(s.embedding_norm, 0, Role::embedding_norm, 1, s.norm_projected ? d : e);
    if (e != d) linear(0, Role::embedding_proj, d, e, s.attention_bias);
    if (c.n_features) {
        linear(0, Role::conv1, d, 3 * c.n_features, true);
        linear(0, Role::conv2, d, 3 * d, true);
    }
    if (s.rope_rows) m.add(stack, 0, Role::rope_freqs, s.rope_rows, c.rope_dim / 2);
    if (!s.layer_flags.empty()) {
        Weights& flags = m.add(stack, 0, Role::layer_flags, 1, c.n_layers);
        for (uint32_t i = 0; i < c.n_layers; i++)
            flags.values[i] = static_cast<float>(s.layer_flags[i % s.layer_flags.size()]);
    }
    if (s.alibi) m.add(stack, 0, Role::alibi_slopes, 1, c.n_heads);
    if (s.relative_keys) {
        Weights& rows = m.add(stack, 0, Role::relative_rows, 1, columns);
        for (uint32_t i = 0; i < columns; i++) rows.values[i] = static_cast<float>(i / 2); // two distances share a row
    }
    norm(s.final_norm, 0, Role::final_norm, 1, d);
    if (!stack && c.n_outputs) {
        if (s.head_dense) linear(0, Role::head_dense, s.head_dense, d, s.head_bias);
        norm(s.head_norm, 0, Role::head_norm, 1, s.head_dense ? s.head_dense : d);
        if (s.head != Head::none) linear(0, Role::lm_head, c.n_outputs, s.head_dense ? s.head_dense : d, s.head_bias);
        if (s.head == Head::tied) {
            Weights& embedding = m.at(stack, 0, Role::token_embedding);
            embedding.identity = 1;
            m.at(stack, 0, Role::lm_head).values = embedding.values;
            m.at(stack, 0, Role::lm_head).identity = 1;
        }
    }
    for (uint32_t l = 1; l <= c.n_layers; l++) {
        const Role norms[3][3] = {{Role::attn_norm_pre, Role::attn_norm_post, Role::attn_norm_out},
                                  {Role::cross_norm_pre, Role::cross_norm_post, Role::cross_norm_out},
                                  {Role::ffn_norm_pre, Role::ffn_norm_post, Role::ffn_norm_out}};
        const bool cross = (c.flags & transformer::flag_cross) != 0;
        for (int i = 0; i < 3; i++) {
            if (i == 1 && !cross) continue;
            norm(s.pre, l, norms[i][0], 1, d);
            norm(s.post, l, norms[i][1], 1, d);
            norm(s.out, l, norms[i][2], 1, d);
        }
        if (c.kv_lora_rank) {
            if (c.q_lora_rank) {
                linear(l, Role::wq_a, c.q_lora_rank, d, s.attention_bias);
                norm(true, l, Role::q_a_norm, 1, c.q_lora_rank);
            }
            linear(l, Role::wq, c.n_heads * (c.rope_dim + c.nope_head_dim), c.q_lora_rank ? c.q_lora_rank : d, false);
            linear(l, Role::wkv_a, c.head_dim, d, s.attention_bias);
            norm(true, l, Role::kv_a_norm, 1, c.kv_lora_rank);
            linear(l, Role::wk_b, c.kv_lora_rank, c.nope_head_dim, false, c.n_heads);
            linear(l, Role::wv_b, c.mla_v_head_dim, c.kv_lora_rank, false, c.n_heads);
        } else {
            linear(l, Role::wq, q, d, s.attention_bias);
            linear(l, Role::wk, kv, d, s.attention_bias);
            linear(l, Role::wv, vv, d, s.attention_bias);
            const uint32_t rows = s.qk == QkNorm::every_head ? c.n_heads : 1,
                           width = s.qk == QkNorm::full ? q : c.head_dim;
            norm(s.qk != QkNorm::none, l, Role::q_norm, rows, width);
            norm(s.qk != QkNorm::none, l, Role::k_norm, s.qk == QkNorm::every_head ? c.n_kv_heads : 1,
                 s.qk == QkNorm::full ? kv : c.head_dim);
        }
        linear(l, Role::wo, d, mixed, s.output_bias);
        if (s.sinks) m.add(stack, l, Role::sinks, 1, c.n_heads);
        if (s.relative_bias) m.add(stack, l, Role::relative_bias, c.n_heads, columns);
        if (s.relative_keys) {
            linear(l, Role::rel_key, columns / 2 + 1, q, false);
            linear(l, Role::rel_query, columns / 2 + 1, q, false);
        }
        if (cross) {
            linear(l, Role::cross_wq, q, d, s.attention_bias);
            linear(l, Role::cross_wk, kv, d, s.attention_bias);
            linear(l, Role::cross_wv, vv, d, s.attention_bias);
            linear(l, Role::cross_wo, d, mixed, s.output_bias);
        }
        const bool experts = c.n_experts && l > s.dense_layers;
        const uint32_t f = experts || !c.dense_hidden_dim ? c.hidden_dim : c.dense_hidden_dim,
                       many = experts ? c.n_experts : 1;
        if (s.gate) linear(l, Role::gate, f, d, s.ffn_bias, many);
        linear(l, Role::up, f, d, s.ffn_bias, many);
        linear(l, Role::down, d, f, s.ffn_bias, many);
        if (!experts) continue;
        linear(l, Role::router, c.n_experts, d, s.ffn_bias);
        if (s.router_bias) m.add(stack, l, Role::router_bias, 1, c.n_experts);
        if (!c.shared_hidden_dim) continue;
        if (s.gate) linear(l, Role::shared_gate, c.shared_hidden_dim, d, false);
        linear(l, Role::shared_up, c.shared_hidden_dim, d, false);
        linear(l, Role::shared_down, d, c.shared_hidden_dim, false);
        if (s.shared_router) linear(l, Role::shared_router, 1, d, false);
    }
}

inline TestModel make_model(const Config& main, const Slots& slots, uint64_t seed, const Config& encoder = Config{},
                            const Slots& encoder_slots = Slots{})
{
    TestModel m;
    m.main = main;
    m.encoder = encoder;
    m.seed = seed;
    add_stack(m, 0, slots);
    if (encoder.n_layers) add_stack(m, 1, encoder_slots);
    return m;
}

// The shape of a tiny Llama: dim 16, hidden 40, 2 layers, 4 heads, 2 kv heads, vocabulary 64.
inline Config tiny_config() { return small_config(16, 40, 2, 4, 2, 4, 64); }
inline TestModel tiny_llama(uint64_t seed = 1) { return make_model(tiny_config(), Slots{}, seed); }

// Any member of the family: a decoder, an encoder, or both, with a random choice of every slot. `kind`: 0, 1, 2, or 3
// for any.
inline TestModel random_model(uint64_t seed, uint32_t kind = 3)
{
    using namespace transformer;
    Random r{scramble(seed)};
    if (kind == 3) kind = r.below(10) < 6 ? 0 : 1 + r.below(2);
    Config configs[2];
    Slots slots[2];
    for (int stack = 0; stack < 2; stack++) {
        Config& c = configs[stack];
        Slots& s = slots[stack];
        const bool causal = stack == 0 && kind != 1;
        c.dim = stack ? configs[0].dim : r.between(3, 40);
        c.embedding_dim = r.chance(5) ? r.between(3, 40) : c.dim;
        c.hidden_dim = r.between(1, 50);
        c.n_layers = r.between(1, 3);
        c.n_kv_heads = r.between(1, 3);
        c.n_heads = c.n_kv_heads * r.between(1, 3);
        c.head_dim = 2 * r.between(1, 10);
        c.v_head_dim = r.chance(4) ? r.between(1, 20) : c.head_dim;
        c.rope_dim = r.chance(3) ? 2 * r.below(c.head_dim / 2 + 1) : c.head_dim;
        c.vocab_size = r.between(3, 60);
        c.n_outputs = stack ? 0 : r.chance(6) ? r.between(1, 40) : c.vocab_size;
        c.max_seq_len = 512;
        c.norm = r.chance(2) ? NormKind::rms : NormKind::layer;
        const Activation kinds[] = {Activation::silu, Activation::gelu,         Activation::gelu_tanh,
                                    Activation::relu, Activation::relu_squared, Activation::quick_gelu,
                                    Activation::tanh, Activation::identity};
        c.activation = kinds[r.below(8)];
        c.flags = causal ? uint32_t{flag_causal} : 0u;
        if (stack == 0 && kind == 2) c.flags |= flag_cross;
        s.pre = !r.chance(4);
        s.post = r.chance(4);
        s.out = r.chance(4) || !s.pre;
        s.final_norm = !r.chance(5);
        s.norm_shift = c.norm == NormKind::layer && r.chance(2);
        s.embedding_norm = r.chance(4);
        s.norm_projected = r.chance(2);
        s.attention_bias = r.chance(3);
        s.output_bias = r.chance(3);
        s.ffn_bias = r.chance(3);
        s.head_bias = r.chance(4);
        s.gate = !r.chance(3);
        s.head =
            c.n_outputs == c.vocab_size && c.embedding_dim == c.dim && !stack && r.chance(3) ? Head::tied : Head::own;
        if (s.pre && r.chance(5)) c.flags |= flag_parallel;
        if (r.chance(4)) s.positions = 400, s.wide_positions = r.chance(3);
        if (r.chance(5)) c.flags |= flag_sinusoidal;
        if (r.chance(6)) c.n_types = r.between(1, 4);
        if (r.chance(3)) {
            s.qk = static_cast<QkNorm>(r.between(1, 3));
            if (r.chance(2)) c.flags |= flag_qk_norm_layer;
            if (r.chance(2)) c.flags |= flag_qk_norm_after_rope;
        }
        if (r.chance(4)) c.window = r.between(1, 150), c.window_ahead = r.below(30);
        else if (causal && r.chance(5)) c.chunk = r.between(1, 150);
        if (r.chance(2))
            for (int i = 0; i < 3; i++) s.layer_flags.push_back(static_cast<uint8_t>(r.below(4)));
        if (c.rope_dim && r.chance(3)) {
            s.rope_rows = r.between(1, 2);
            if (s.rope_rows == 2 && r.chance(2) && causal) c.rope_long_from = r.between(1, 200);
            if (s.rope_rows == 2 && !c.rope_long_from)
                for (uint8_t& f : s.layer_flags)
                    f = static_cast<uint8_t>(f | (r.chance(2) ? 0u : uint32_t{layer_rope_local}));
            if (r.chance(3)) c.rope_scale = 1.25f;
        }
        if (!s.layer_flags.empty() && r.chance(5) && causal) {
            c.temperature_floor = 4;
            c.temperature_scale = 0.25f;
            for (uint8_t& f : s.layer_flags) f |= layer_query_temperature;
        }
        s.sinks = r.chance(5);
        if (r.chance(6)) s.alibi = true;
        else if (r.chance(5)) s.relative_bias = true, c.relative_distance = r.between(1, 20);
        else if (!causal && c.n_heads == c.n_kv_heads && c.v_head_dim == c.head_dim && r.chance(3))
            s.relative_keys = true, c.relative_distance = r.between(1, 20);
        if (r.chance(5)) c.attn_softcap = 2;
        if (r.chance(5)) c.logit_softcap = 3;
        if (r.chance(5)) c.logit_scale = 0.75f;
        if (r.chance(5)) c.embedding_scale = 1.5f;
        if (r.chance(5)) c.residual_scale = 0.5f;
        if (r.chance(6)) c.qkv_clip = 0.75f;
        if (r.chance(5)) c.attn_scale = 0.375f;
        if (r.chance(4)) {
            c.n_experts = r.between(1, 6);
            c.n_experts_active = r.between(1, c.n_experts);
            if (c.n_experts == 6 && r.chance(2)) {
                c.n_groups = 3;
                c.n_groups_active = 2;
                c.n_experts_active = r.between(1, 4);
                if (r.chance(2)) c.flags |= flag_group_top2;
            }
            c.router = r.chance(2) ? Router::softmax : Router::sigmoid;
            if (r.chance(2)) c.flags |= flag_renormalise;
            if (r.chance(4)) c.flags |= flag_scale_expert_input;
            if (r.chance(3)) c.routed_scale = 2.5f;
            s.router_bias = r.chance(3);
            if (r.chance(2)) c.shared_hidden_dim = r.between(1, 30), s.shared_router = r.chance(2);
            if (c.n_layers > 1 && c.n_experts > 1 && r.chance(3))
                s.dense_layers = 1, c.dense_hidden_dim = r.between(1, 60);
            if (s.gate && r.chance(4))
                c.activation = Activation::clamped_swiglu, c.mlp_clamp = 0.5f, c.mlp_alpha = 1.702f;
        }
        if (stack == 0 && kind != 2 && r.chance(6) && !s.relative_keys) {   // latent attention
            c.n_kv_heads = 1;
            c.kv_lora_rank = r.between(1, 20);
            c.rope_dim = 2 * r.between(1, 4);
            c.head_dim = c.rope_dim + c.kv_lora_rank;
            c.v_head_dim = c.kv_lora_rank;
            c.nope_head_dim = r.between(1, 12);
            c.mla_v_head_dim = r.between(1, 12);
            c.q_lora_rank = r.chance(2) ? r.between(1, 20) : 0;
            s.qk = QkNorm::none;
            c.qkv_clip = 0;
        }
        if (stack == 0 && kind == 1) {
            c.pooling = static_cast<Pooling>(r.below(4));
            if (r.chance(2)) {
                s.head_dense = r.between(1, c.dim);
                s.head_norm = r.chance(2); s.head_bias = false;
                s.head = Head::own;
                c.head_activation = r.chance(2) ? Activation::tanh : Activation::gelu;
            }
        }
        if (stack == 1 && r.chance(4))
            c.n_features = r.between(1, 9), c.n_frames = 2 * r.between(1, 20), c.vocab_size = 0, c.n_types = 0;
        if (c.n_features) c.embedding_dim = c.dim, s.norm_projected = true;
    }
    return kind == 2 ? make_model(configs[0], slots[0], seed, configs[1], slots[1])
                     : make_model(configs[0], slots[0], seed);
}

// ---- Running --------------------------------------------------------------------------------------------------------

inline std::string words(const Status& s)
{
    return "code " + std::to_string(static_cast<int>(s.code)) + ": " + s.text + " (" + s.field + ", " +
           std::to_string(s.where) + ")";
}
#define REQUIRE_OK(expression)                                                         \
    do {                                                                               \
        const transformer::Status status_ = (expression);                              \
        REQUIRE_MESSAGE(status_.code == transformer::Code::ok, test::words(status_));  \
    } while (false)

struct Opened {
    explicit Opened(AlignedBytes from) : bytes(std::move(from))
    {
        REQUIRE_OK(transformer::open(bytes.data, bytes.size, &model));
    }
    explicit Opened(const TestModel& m) : Opened(m.checkpoint()) {}
    Opened(const TestModel& m, DType type) : Opened(m.checkpoint(type)) {}
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;
    AlignedBytes bytes;
    Model model;
};

// A session in exactly as much memory as it asks for, filled with what an earlier owner could have left there.
struct Started {
    Started(const Model& m, const Options& o, int fill = 0xff) : memory(transformer::session_size(m, o))
    {
        std::memset(memory.data, fill, static_cast<size_t>(memory.size));
        REQUIRE_OK(transformer::start(m, o, memory.data, memory.size, &session));
    }
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;
    AlignedBytes memory;
    Session session;
};

inline Options plain_options(uint32_t capacity, DType cache = DType::f32)
{
    Options o;
    o.capacity = capacity;
    o.cache = cache;
    return o;
}
inline std::vector<int32_t> random_tokens(uint32_t n, uint32_t vocab, uint64_t seed = 7)
{
    std::vector<int32_t> ids(n);
    Random r{seed};
    for (int32_t& id : ids) id = static_cast<int32_t>(r.below(vocab));
    return ids;
}
inline Input tokens_of(const std::vector<int32_t>& ids, size_t first = 0, size_t count = SIZE_MAX)
{
    Input in;
    in.tokens = ids.data() + first;
    in.count = static_cast<uint32_t>(std::min(count, ids.size() - first));
    return in;
}
inline std::vector<float> last_row(const Session& s)
{
    const uint32_t n = s.model->main.config.n_outputs;
    const float* const row = s.logits + size_t{s.logit_rows - 1} * n;
    return std::vector<float>(row, row + n);
}
inline std::vector<float> copy_of(const Rows& r)
{
    return std::vector<float>(r.data, r.data + size_t{r.count} * r.dim);
}

// Logits after every token of a decoder, the tokens given in pieces.
inline std::vector<float> all_logits(Session& s, const std::vector<int32_t>& ids, uint32_t piece)
{
    std::vector<float> out;
    for (size_t done = 0; done < ids.size(); done += piece) {
        float* logits = nullptr;
        REQUIRE_OK(transformer::forward(s, tokens_of(ids, done, piece), &logits));
        out.insert(out.end(), logits, logits + size_t{s.logit_rows} * s.model->main.config.n_outputs);
    }
    return out;
}
inline std::vector<float> all_logits(const Model& m, Options o, const std::vector<int32_t>& ids, uint32_t piece,
                                     int fill = 0xff)
{
    o.batch = piece;
    o.all_logits = true;
    Started s(m, o, fill);
    return all_logits(s.session, ids, piece);
}
// Logits after the last token, all tokens in one call.
inline std::vector<float> last_logits(const Model& m, const Options& o, const std::vector<int32_t>& ids,
                                      int fill = 0xff)
{
    Started s(m, o, fill);
    REQUIRE_OK(transformer::forward(s.session, tokens_of(ids), nullptr));
    return last_row(s.session);
}

inline std::vector<Isa> rooms()
{
    std::vector<Isa> list;
    for (uint32_t isa = 1; isa < transformer::n_isas; isa++)
        if (transformer::room_available(static_cast<Isa>(isa))) list.push_back(static_cast<Isa>(isa));
    return list;
}

// ---- Files ----------------------------------------------------------------------------------------------------------

// A folder of large test files that is not part of the repository: "" if it is not there.
inline std::string shared_folder(const std::string& name)
{
    const char* const given = std::getenv("TRANSFORMER_SHARED");
    const std::string folder = weights::join(given ? given : "../shared", name);
    return weights::is_directory(folder) ? folder : "";
}

// A file or folder that goes when the test ends.
struct Temporary {
    explicit Temporary(const std::string& name)
    {
        static int count = 0;
        std::random_device random;
        path = (std::filesystem::temp_directory_path() /
                ("transformer-test-" + std::to_string(random()) + "-" + std::to_string(count++) + "-" + name))
                   .string();
    }
    Temporary(const std::string& name, const void* data, size_t n) : Temporary(name) { write(data, n); }
    Temporary(const std::string& name, const std::string& bytes) : Temporary(name, bytes.data(), bytes.size()) {}
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    ~Temporary()
    {
        std::error_code error;
        std::filesystem::remove_all(path, error);
    }
    void write(const void* data, size_t n) const
    {
        std::ofstream stream(path, std::ios::binary | std::ios::trunc);
        stream.write(static_cast<const char*>(data), static_cast<std::streamsize>(n));
        REQUIRE(stream.good());
    }
    std::string path;
};

// The sentence of the Error that a call throws, "" if it throws none.
template <class Call> std::string error_of(const Call& call)
{
    try {
        call();
    } catch (const weights::Error& error) {
        return error.what();
    }
    return "";
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace test
#endif
