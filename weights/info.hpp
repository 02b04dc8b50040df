// weights/info.hpp - what a model is: its tensors counted, its block drawn, its configuration as JSON or as C++
//
// Everything here reads a Source, so that a model can be described before it is converted, from its shapes alone.
#ifndef TRANSFORMER_WEIGHTS_INFO_HPP
#define TRANSFORMER_WEIGHTS_INFO_HPP

#include "import.hpp"

#include <cstdarg>
#include <cstdio>
#include <map>
#include <set>

namespace weights {

// ---- Text ------------------------------------------------------------------------------------------------------------

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
inline std::string format(const char* pattern, ...)
{
    va_list list, again;
    va_start(list, pattern);
    va_copy(again, list);
    std::string out(static_cast<size_t>(std::max(0, std::vsnprintf(nullptr, 0, pattern, list))), '\0');
    std::vsnprintf(out.data(), out.size() + 1, pattern, again);
    va_end(again);
    va_end(list);
    return out;
}
inline std::string counted(uint64_t n, const char* noun) { return std::to_string(n) + " " + noun + (n == 1 ? "" : "s"); }
inline std::string bytes_text(uint64_t n)
{
    static const char* const units[] = {"bytes", "KB", "MB", "GB", "TB", "PB", "EB"};
    double value = static_cast<double>(n);
    size_t unit = 0;
    for (; value >= 999.5 && unit < 6; unit++) value /= 1000;
    return format(unit && value < 99.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}
template <class T> std::string joined(const std::vector<T>& values, const char* between)
{
    std::string out;
    for (const T& value : values) out += (out.empty() ? "" : between) + std::to_string(value);
    return out;
}

// Bytes of the character that begins at s[i]; 0: it is not UTF-8.
inline size_t character_bytes(const std::string& s, size_t i)
{
    const auto byte = [&](size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
    const uint32_t c = byte(i), next = byte(i + 1);
    const size_t n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    for (size_t k = 1; k < n; k++)
        if ((byte(i + k) & 0xc0) != 0x80) return 0;
    const bool wrong = (c == 0xe0 && next < 0xa0) || (c == 0xed && next > 0x9f) || (c == 0xf0 && next < 0x90) || (c == 0xf4 && next > 0x8f);
    return wrong ? 0 : n;
}
// With its quotes; bytes that are not UTF-8 become U+FFFD.
inline std::string json_text(const std::string& s)
{
    std::string out = "\"";
    for (size_t i = 0, n = 0; i < s.size(); i += n ? n : 1) {
        const unsigned char c = static_cast<unsigned char>(s[i]);
        n = character_bytes(s, i);
        if (n == 0) out += "\\ufffd";
        else if (c == '"' || c == '\\') out += {'\\', s[i]};
        else if (c == '\n') out += "\\n";
        else if (c < 0x20 || c == 0x7f) out += format("\\u%04x", static_cast<unsigned>(c));
        else out.append(s, i, n);
    }
    return out + "\"";
}
inline std::string xml_text(const std::string& s)
{
    const std::string escaped = json_text(s);
    std::string out;
    for (size_t i = 1; i + 1 < escaped.size(); i++)
        out += escaped[i] == '<' ? "&lt;" : escaped[i] == '&' ? "&amp;" : std::string(1, escaped[i]);
    return out;
}
// A JSON object, key by key.
class JsonObject {
public:
    JsonObject& raw(const std::string& key, const std::string& value)
    {
        text_ += (text_.empty() ? "{" : ", ") + json_text(key) + ": " + value;
        return *this;
    }
    JsonObject& add(const std::string& key, const std::string& value) { return raw(key, json_text(value)); }
    JsonObject& add(const std::string& key, uint64_t value) { return raw(key, std::to_string(value)); }
    JsonObject& add(const std::string& key, double value) { return raw(key, format("%.9g", value)); }
    JsonObject& add(const std::string& key, const std::map<std::string, uint64_t>& counts)
    {
        JsonObject inner;
        for (const auto& [name, n] : counts) inner.add(name, n);
        return raw(key, inner.text());
    }
    std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

private:
    std::string text_;
};

constexpr const char* type_names[transformer::n_dtypes] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "u8"};
inline const char* type_name(DType type) { return type_names[static_cast<size_t>(type)]; }

// ---- Our own checkpoint as a source ----------------------------------------------------------------------------------

// Entry i of the tensor table: role, type, stack, 0, layer (16 bits), 0, rows, cols, count, 0, offset (64 bits).
inline TensorSource table_entry(const transformer::Model& m, uint32_t i)
{
    const unsigned char* p = m.table + entry_bytes * i;
    TensorSource t;
    t.role = p[0];
    t.stored = static_cast<DType>(p[1]);
    t.stack = p[2];
    t.layer = load_u16(p + 4);
    t.rows = load_u32(p + 8);
    t.cols = load_u32(p + 12);
    t.count = load_u32(p + 16);
    t.identity = load_u64(p + 24);                             // one offset is one tensor
    const transformer::Tensor view{m.bytes + t.identity, t.rows, t.cols, t.count, t.stored};
    t.read = [view](uint32_t matrix, uint32_t first, uint32_t n, float* out) {
        for (uint32_t row = 0; row < n; row++) transformer::dequantize_row(view, matrix, first + row, out + size_t{row} * view.cols);
    };
    if (transformer::is_quantised(view.dtype))
        t.read_tile = [view](uint32_t matrix, uint32_t tile, unsigned char* out) {
            const uint64_t bytes = transformer::matrix_bytes(view.dtype, 16, view.cols);
            const uint64_t at = matrix * transformer::matrix_bytes(view.dtype, view.rows, view.cols) + tile * bytes;
            std::memcpy(out, view.data + at, static_cast<size_t>(bytes));
        };
    return t;
}

inline VocabularySource vocabulary_of(const transformer::Vocabulary& v)
{
    VocabularySource out;
    out.kind = v.kind, out.flags = v.flags, out.split_rule = v.split_rule;
    out.bos = v.bos, out.eos = v.eos, out.unknown = v.unknown, out.pad = v.pad;
    out.separator = v.separator, out.classify = v.classify, out.mask = v.mask;
    const auto word = [](const unsigned char* p, uint32_t i) { return load_u32(p + 4 * size_t{i}); };
    for (uint32_t i = 0; i < v.n_tokens; i++) {
        uint32_t n = 0;
        const char* text = transformer::token_text(v, static_cast<int32_t>(i), &n);
        out.tokens.emplace_back(text, n);
        if (v.scores) out.scores.push_back(load_f32(v.scores + 4 * size_t{i}));
        if (v.types) out.types.push_back(static_cast<transformer::TokenType>(v.types[i]));
    }
    for (uint32_t i = 0; i < v.n_stop; i++) out.stop.push_back(static_cast<int32_t>(word(v.stop, i)));
    for (uint32_t i = 0; i < 4 * v.n_merges; i += 4)
        out.merges.push_back({word(v.merges, i), word(v.merges, i + 1), word(v.merges, i + 2), word(v.merges, i + 3)});
    for (uint32_t i = 0; i < 3 * v.n_classes; i += 3)
        out.classes.push_back({word(v.classes, i), word(v.classes, i + 1), word(v.classes, i + 2)});
    if (v.normal) out.normal.assign(reinterpret_cast<const char*>(v.normal), v.normal_size);
    if (v.chat_template) out.chat_template.assign(v.chat_template, v.chat_template_size);
    if (v.labels) out.labels.assign(v.labels, v.labels_size);
    return out;
}

// `m` and the bytes that it points into must outlive what is returned.
inline Source source_of(const transformer::Model& m)
{
    Source s;
    s.kind = "checkpoint of transformer.hpp";
    s.main = m.main.config;
    s.encoder = m.encoder.config;
    for (uint32_t i = 0; i < m.n_tensors; i++) s.tensors.push_back(table_entry(m, i));
    s.vocabulary = vocabulary_of(m.vocabulary);
    return s;
}

// ---- Counting --------------------------------------------------------------------------------------------------------

// The part of the model that a tensor belongs to; "tables" follow from the configuration and are no parameters.
inline const char* part_of(const TensorSource& t)
{
    switch (static_cast<Role>(t.role & 0x7f)) {
    case Role::token_embedding: case Role::type_embedding: case Role::position_embedding: case Role::embedding_proj:
    case Role::final_proj: case Role::conv1: case Role::conv2: return "embedding";
    case Role::rope_freqs: case Role::layer_flags: case Role::alibi_slopes: case Role::relative_rows: return "tables";
    case Role::head_dense: case Role::lm_head: return "head";
    case Role::wq: case Role::wk: case Role::wv: case Role::wo: case Role::sinks: case Role::relative_bias: case Role::rel_key:
    case Role::rel_query: case Role::wq_a: case Role::wkv_a: case Role::wk_b: case Role::wv_b: return "attention";
    case Role::cross_wq: case Role::cross_wk: case Role::cross_wv: case Role::cross_wo: return "cross_attention";
    case Role::gate: case Role::up: case Role::down: return t.count > 1 ? "experts" : "feed_forward";
    case Role::router: case Role::router_bias: case Role::shared_router: return "router";
    case Role::shared_gate: case Role::shared_up: case Role::shared_down: return "shared_expert";
    default: return "norms";
    }
}

struct Counts {
    std::map<std::string, uint64_t> parts, types;              // parameters by part, bytes by type
    uint64_t parameters = 0, active = 0;                       // active: with the chosen experts only
    uint64_t bytes_per_token = 0;                              // of weights that a token's pass through the main stack reads
};
inline Counts count(const Source& source, const WriteOptions& options)
{
    Counts c;
    std::set<std::pair<uint64_t, DType>> seen;
    for (const TensorSource& t : source.tensors) {
        const Config& config = t.stack ? source.encoder : source.main;
        const std::string part = part_of(t);
        const DType type = written_type(t, options);
        const uint64_t n = uint64_t{t.rows} * t.cols * t.count, bytes = t.count * transformer::matrix_bytes(type, t.rows, t.cols);
        const Role role = static_cast<Role>(t.role);
        const bool table = part == "tables";
        const bool looked_up = role == Role::token_embedding || role == Role::type_embedding || role == Role::position_embedding;
        const auto share = [&](uint64_t whole) { return part == "experts" ? whole / t.count * config.n_experts_active : whole; };
        if (t.stack == 0 && !table) c.bytes_per_token += looked_up ? bytes / t.rows : share(bytes);
        if (t.identity && !seen.insert({t.identity, type}).second) continue; // tied or shared: it is there once
        c.types[type_name(type)] += bytes;
        if (table) continue;
        c.parts[part] += n;
        c.parameters += n;
        c.active += share(n);
    }
    return c;
}

// Bytes of keys and values that one position adds to the cache.
inline uint64_t cache_bytes_per_token(const Config& c, DType type)
{
    return uint64_t{c.n_layers} * c.n_kv_heads * (uint64_t{c.head_dim} + c.v_head_dim) * transformer::unit_bytes(type);
}

// ---- The block -------------------------------------------------------------------------------------------------------

using Slots = std::set<std::string>;                           // names of the roles that are present, "gate x 8" if stacked

inline std::string role_text(const TensorSource& t)
{
    return std::string(transformer::role_name(t.role & 0x7f)) + (t.role & transformer::role_bias ? ".b" : "") +
           (t.count > 1 ? " x " + std::to_string(t.count) : "");
}

struct Blocks {                                                // consecutive layers with the same slots
    uint32_t first, last;
    Slots slots;
};
inline std::vector<Blocks> blocks_of(const Source& source, uint32_t stack)
{
    std::vector<Slots> layers((stack ? source.encoder : source.main).n_layers);
    for (const TensorSource& t : source.tensors)
        if (t.stack == stack && t.layer && t.layer <= layers.size())
            layers[t.layer - 1].insert(role_text(t));
    std::vector<Blocks> out;
    for (uint32_t i = 0; i < layers.size(); i++) {
        if (out.empty() || out.back().slots != layers[i]) out.push_back({i + 1, i + 1, layers[i]});
        out.back().last = i + 1;
    }
    return out;
}

inline bool filled(const Slots& slots, const char* name)       // "gate" finds "gate" and "gate x 8"
{
    const auto found = slots.lower_bound(name);
    return found != slots.end() && (*found == name || found->compare(0, std::strlen(name) + 1, std::string(name) + " ") == 0);
}
inline const char* norm_name(const Config& c) { return c.norm == transformer::NormKind::rms ? "RMSNorm" : "LayerNorm"; }

inline std::string attention_text(const Config& c, const Slots& slots)
{
    std::string out = c.kv_lora_rank ? format("MLA attention: %u heads, latent of %u", c.n_heads, c.kv_lora_rank)
                                     : format("attention: %u heads of %u", c.n_heads, c.head_dim);
    if (c.n_kv_heads != c.n_heads && !c.kv_lora_rank) out += format(", %u of keys and values", c.n_kv_heads);
    if (c.rope_dim) out += format(", RoPE on %u, theta %g", c.rope_dim, static_cast<double>(c.rope_theta));
    if (filled(slots, "q_norm")) out += ", q and k normalised";
    if (filled(slots, "relative_bias")) out += ", relative bias";
    if (filled(slots, "rel_key")) out += ", relative keys";
    if (filled(slots, "sinks")) out += ", sinks";
    if (c.window) out += format(", window %u", c.window);
    if (c.chunk) out += format(", chunks of %u", c.chunk);
    if (filled(slots, "wq.b")) out += ", biases";
    return out + (transformer::is_causal(c) ? ", causal" : ", both ways");
}
inline std::string feed_forward_text(const Config& c, const Slots& slots)
{
    static const char* const names[] = {"silu", "gelu", "gelu_tanh", "relu", "relu_squared", "quick_gelu", "clamped_swiglu", "tanh", "identity"};
    const char* act = names[static_cast<size_t>(c.activation)];
    const bool routed = filled(slots, "router");
    const uint32_t hidden = routed || !c.dense_hidden_dim ? c.hidden_dim : c.dense_hidden_dim;
    std::string out = "feed-forward: " + (filled(slots, "gate") ? format("down(%s(gate x) * up x)", act) : format("down(%s(up x))", act));
    out += format(", hidden %u", hidden);
    if (routed) out += format(", %u of %u experts", c.n_experts_active, c.n_experts);
    if (filled(slots, "shared_up")) out += format(", a shared expert of %u", c.shared_hidden_dim);
    return out + (filled(slots, "up.b") ? ", biases" : "");
}

// Top to bottom: the stream x on the left, what a branch does to its copy on the right, the sum, a norm of the sum.
inline std::string draw(const Config& c, const Slots& slots)
{
    std::string out;
    const auto branch = [&](const std::string& name, const std::string& what) {
        if (filled(slots, (name + "_norm_pre").c_str())) out += format("    |   |  %s_norm.pre: %s\n", name.c_str(), norm_name(c));
        out += "    |   |  " + what + "\n";
        if (filled(slots, (name + "_norm_post").c_str())) out += format("    |   |  %s_norm.post: %s\n", name.c_str(), norm_name(c));
    };
    const auto join = [&](const std::string& name) {
        out += "    + <-+\n";
        if (filled(slots, (name + "_norm_out").c_str())) out += format("    |      %s_norm.out: %s\n", name.c_str(), norm_name(c));
    };
    const bool parallel = (c.flags & transformer::flag_parallel) != 0;
    out += "    x --+\n";
    branch("attn", attention_text(c, slots));
    if (parallel) {
        out += "    |   +  parallel: the feed-forward reads the same x\n";
    } else {
        join("attn");
        out += "    |---+\n";
    }
    if (filled(slots, "cross_wq")) {
        branch("cross", format("cross attention: %u heads of %u, over the encoder's output", c.n_heads, c.head_dim));
        join("cross");
        out += "    |---+\n";
    }
    branch("ffn", feed_forward_text(c, slots));
    join("ffn");
    return out;
}

inline std::string stack_text(const Source& s, uint32_t stack)
{
    const Config& c = stack ? s.encoder : s.main;
    std::string out = format("%s: dim %u, hidden %u, %u layers, %u heads of %u", !stack && transformer::is_causal(c) ? "decoder" : "encoder", c.dim,
                             c.hidden_dim, c.n_layers, c.n_heads, c.head_dim);
    if (c.n_kv_heads != c.n_heads) out += format(" (%u of keys and values)", c.n_kv_heads);
    if (c.vocab_size) out += format(", vocabulary %u", c.vocab_size);
    out += c.max_seq_len ? format(", trained for %u positions\n ", c.max_seq_len) : std::string("\n ");
    std::set<uint64_t> seen;
    for (const TensorSource& t : s.tensors) {
        const bool again = t.identity && !seen.insert(t.identity).second;
        if (t.stack == stack && !t.layer) out += format(" %s (%u, %u)%s,", role_text(t).c_str(), t.rows, t.cols, again ? " tied" : "");
    }
    out.back() = '\n';
    for (const Blocks& b : blocks_of(s, stack))
        out += (b.first == b.last ? format("  block %u\n", b.first) : format("  blocks %u to %u\n", b.first, b.last)) + draw(c, b.slots);
    return out;
}
inline std::string json_blocks(const Source& s, uint32_t stack)
{
    std::string out;
    for (const Blocks& b : blocks_of(s, stack)) {
        std::string slots;
        for (const std::string& slot : b.slots) slots += (slots.empty() ? "" : ", ") + json_text(slot);
        out += (out.empty() ? "" : ", ") + JsonObject().add("first", uint64_t{b.first}).add("last", uint64_t{b.last}).raw("slots", "[" + slots + "]").text();
    }
    return "[" + out + "]";
}

// Each head a square of cells, the darker the larger its weight; rows are queries, columns keys.
inline std::string attention_svg(const std::vector<float>& values, uint32_t heads, uint32_t t, uint32_t s, const std::vector<std::string>& labels)
{
    const uint32_t cell = 12, across = std::min(heads, 4u), margin = labels.empty() ? 20 : 100;
    const uint32_t width = margin + s * cell + 20, height = t * cell + 40;
    const auto box = [](uint32_t x, uint32_t y, uint32_t w, uint32_t h, const std::string& style) {
        return format("<rect x=\"%u\" y=\"%u\" width=\"%u\" height=\"%u\" %s/>\n", x, y, w, h, style.c_str());
    };
    std::string out = format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%u\" height=\"%u\" font-family=\"monospace\" font-size=\"10\">\n",
                             width * across, height * ((heads + across - 1) / across));
    out += "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n";
    for (uint32_t h = 0; h < heads; h++) {
        out += format("<g transform=\"translate(%u,%u)\">\n<text x=\"%u\" y=\"14\">head %u</text>\n", h % across * width, h / across * height, margin, h + 1);
        out += box(margin, 20, s * cell, t * cell, "fill=\"none\" stroke=\"#999\"");
        for (uint32_t i = 0; i < labels.size(); i++)
            out += format("<text x=\"%u\" y=\"%u\" text-anchor=\"end\">%s</text>\n", margin - 4, 30 + i * cell, xml_text(labels[i]).c_str());
        for (uint32_t i = 0; i < t * s; i++) {
            const double w = static_cast<double>(values[size_t{h} * t * s + i]);
            if (w >= 0.005) out += box(margin + i % s * cell, 20 + i / s * cell, cell, cell, format("fill=\"#036\" fill-opacity=\"%.2f\"", w));
        }
        out += "</g>\n";
    }
    return out + "</svg>\n";
}

// ---- The configuration -----------------------------------------------------------------------------------------------

#define TRANSFORMER_CONFIG_FIELDS(X)                                                                                            \
    X(dim) X(hidden_dim) X(n_layers) X(n_heads) X(n_kv_heads) X(head_dim) X(v_head_dim) X(vocab_size) X(n_outputs) X(max_seq_len)   \
    X(embedding_dim) X(n_types) X(n_experts) X(n_experts_active) X(dense_hidden_dim) X(shared_hidden_dim) X(n_groups)               \
    X(n_groups_active) X(q_lora_rank) X(kv_lora_rank) X(nope_head_dim) X(mla_v_head_dim) X(rope_dim) X(rope_long_from) X(window)    \
    X(window_ahead) X(chunk) X(relative_distance) X(n_features) X(n_frames) X(norm) X(activation) X(head_activation) X(router)      \
    X(pooling) X(flags) X(decoder_start) X(norm_eps) X(qk_norm_eps) X(rope_theta) X(rope_scale) X(attn_scale) X(attn_softcap)       \
    X(logit_softcap) X(logit_scale) X(embedding_scale) X(residual_scale) X(qkv_clip) X(routed_scale) X(temperature_floor)           \
    X(temperature_scale) X(mlp_clamp) X(mlp_alpha)
#define TRANSFORMER_COUNT_FIELD(name) + 1
static_assert(0 TRANSFORMER_CONFIG_FIELDS(TRANSFORMER_COUNT_FIELD) + sizeof(Config::reserved) / 4 == sizeof(Config) / 4, "a field is missing");
#undef TRANSFORMER_COUNT_FIELD

inline std::string literal(uint32_t value, bool) { return std::to_string(value); }
inline std::string literal(float value, bool cpp)
{
    const std::string text = format("%.9g", static_cast<double>(value));
    return text + (text.find_first_of(".e") == std::string::npos ? ".0" : "") + (cpp ? "f" : "");
}
template <class Enum> std::string literal(Enum value, bool cpp)
{
    const char* type = std::is_same_v<Enum, transformer::NormKind> ? "NormKind" : std::is_same_v<Enum, transformer::Router> ? "Router"
                     : std::is_same_v<Enum, transformer::Pooling> ? "Pooling" : "Activation";
    const std::string number = std::to_string(static_cast<uint32_t>(value));
    return cpp ? std::string("static_cast<transformer::") + type + ">(" + number + ")" : number;
}

inline std::string config_json(const Config& c)
{
    JsonObject out;
#define TRANSFORMER_FIELD(name) out.raw(#name, literal(c.name, false));
    TRANSFORMER_CONFIG_FIELDS(TRANSFORMER_FIELD)
#undef TRANSFORMER_FIELD
    return out.text();
}
// Assignments of all that differs from a Config as it is born.
inline std::string config_assignments(const Config& c)
{
    std::string out;
    const Config born;
#define TRANSFORMER_FIELD(name) \
    if (literal(c.name, true) != literal(born.name, true)) out += "    c." #name " = " + literal(c.name, true) + ";\n";
    TRANSFORMER_CONFIG_FIELDS(TRANSFORMER_FIELD)
#undef TRANSFORMER_FIELD
    return out;
}

// A header for a firmware: the configuration and the sizes as constants, so that its buffers are exact at compile time.
inline std::string firmware_header(const Source& s, const std::string& file, uint64_t bytes, const transformer::Options& o)
{
    const auto config = [](const char* name, const Config& c) {
        return format("constexpr transformer::Config make_%s()\n{\n    transformer::Config c;\n%s    return c;\n}\nconstexpr transformer::Config %s = make_%s();\n\n",
                      name, config_assignments(c).c_str(), name, name);
    };
    return format("// %s: what transformer.hpp needs to know of it at compile time. Written by `run import --header`.\n"
                  "//\n//     alignas(64) static unsigned char memory[model::session_bytes];\n"
                  "//     transformer::start(model, model::options, memory, sizeof memory, &session);\n"
                  "#ifndef TRANSFORMER_MODEL_HPP\n#define TRANSFORMER_MODEL_HPP\n\n#include \"transformer.hpp\"\n\nnamespace model {\n\n", printable(file, 200).c_str()) +
           config("config", s.main) + (s.encoder.n_layers ? config("encoder", s.encoder) : "") +
           format("constexpr transformer::Options make_options()\n{\n    transformer::Options o;\n    o.capacity = %u;\n    o.batch = %u;\n"
                  "    o.cache = transformer::DType::%s;\n    return o;\n}\nconstexpr transformer::Options options = make_options();\n\n"
                  "constexpr uint64_t checkpoint_bytes = %llu;\n"
                  "constexpr uint64_t session_bytes = transformer::plan(config, %s, options).at[transformer::n_regions];\n"
                  "static_assert(session_bytes == %llu, \"the header is of another version of transformer.hpp\");\n\n}  // namespace model\n#endif\n",
                  o.capacity, o.batch, type_name(o.cache), static_cast<unsigned long long>(bytes),
                  s.encoder.n_layers ? "encoder" : "transformer::Config{}", static_cast<unsigned long long>(transformer::plan(s.main, s.encoder, o).at[transformer::n_regions]));
}

}  // namespace weights
#endif
