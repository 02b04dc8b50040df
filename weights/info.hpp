// weights/info.hpp - what a model is: its tensors counted, its configuration as JSON or as C++
//
// Everything here reads a Source, so that a model can be described before it is converted, from its shapes alone:
// block.hpp describes its block in words, picture.hpp draws it, review.hpp holds it against today's defaults.
#ifndef TRANSFORMER_WEIGHTS_INFO_HPP
#define TRANSFORMER_WEIGHTS_INFO_HPP

#include "import.hpp"

#include <cstdarg>
#include <cstdio>
#include <map>
#include <set>

namespace weights {

// ---- Text -----------------------------------------------------------------------------------------------------------

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
inline std::string counted(uint64_t n, const char* noun)
{
    return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}
inline std::string digits(uint64_t n)                          // 1,050,624
{
    std::string out = std::to_string(n);
    for (size_t at = out.size(); at > 3;) out.insert(at -= 3, ",");
    return out;
}
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
    for (const T& value : values) {
        if (!out.empty()) out += between;
        if constexpr (std::is_same_v<T, std::string>)
            out += value;
        else
            out += std::to_string(value);
    }
    return out;
}
// Lines of at most `width` columns, broken at blanks; a word that is longer has a line of its own.
inline std::vector<std::string> wrapped(const std::string& text, size_t width)
{
    std::vector<std::string> lines(1);
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(' ', at), text.size());
        if (!lines.back().empty() && lines.back().size() + 1 + end - at > width) lines.emplace_back();
        lines.back() += (lines.back().empty() ? "" : " ") + text.substr(at, end - at);
        at = end + 1;
    }
    return lines;
}

// Bytes of the character that begins at s[i]; 0: it is not UTF-8.
inline size_t character_bytes(const std::string& s, size_t i)
{
    const auto byte = [&](size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
    const uint32_t c = byte(i), next = byte(i + 1);
    const size_t n = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    for (size_t k = 1; k < n; k++)
        if ((byte(i + k) & 0xc0) != 0x80) return 0;
    const bool wrong = (c == 0xe0 && next < 0xa0) || (c == 0xed && next > 0x9f) || (c == 0xf0 && next < 0x90) ||
                       (c == 0xf4 && next > 0x8f);
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

// ---- Our own checkpoint as a source ---------------------------------------------------------------------------------

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
        for (uint32_t row = 0; row < n; row++, out += view.cols)
            if (view.dtype != DType::u8)
                transformer::dequantize_row(view, matrix, first + row, out);
            else
                for (uint32_t c = 0; c < view.cols; c++) out[c] = view.data[size_t{first + row} * view.cols + c];
    };
    if (transformer::is_quantised(view.dtype))
        t.read_tile = [view](uint32_t matrix, uint32_t tile, unsigned char* out) {
            const uint64_t bytes = transformer::matrix_bytes(view.dtype, 16, view.cols);
            const uint64_t at = matrix * transformer::matrix_bytes(view.dtype, view.rows, view.cols) + tile * bytes;
            std::memcpy(out, view.data + at, static_cast<size_t>(bytes));
        };
    return t;
}

// `m` and the bytes that it points into must outlive what is returned.
inline Source source_of(const transformer::Model& m)
{
    Source s;
    s.kind = "checkpoint of transformer.hpp";
    s.main = m.main.config;
    s.encoder = m.encoder.config;
    for (uint32_t i = 0; i < m.n_tensors; i++) s.tensors.push_back(table_entry(m, i));
    s.vocabulary = vocabulary_source(m.vocabulary);
    return s;
}

// ---- Counting -------------------------------------------------------------------------------------------------------

// The part of the model that a tensor belongs to. "tables" are no parameters: they follow from the configuration, from
// others that training learns (relative positions), or are kept by hand (a router's correction).
inline const char* part_of(const TensorSource& t)
{
    switch (static_cast<Role>(t.role & 0x7f)) {
    case Role::token_embedding: case Role::type_embedding: case Role::position_embedding: case Role::embedding_proj:
    case Role::final_proj: case Role::conv1: case Role::conv2: return "embedding";
    case Role::rope_freqs: case Role::layer_flags: case Role::alibi_slopes: case Role::relative_rows:
    case Role::relative_bias: case Role::rel_key: case Role::rel_query: case Role::router_bias: return "tables";
    case Role::head_dense: case Role::lm_head: return "head";
    case Role::wq: case Role::wk: case Role::wv: case Role::wo: case Role::sinks: case Role::wq_a: case Role::wkv_a:
    case Role::wk_b: case Role::wv_b: return "attention";
    case Role::cross_wq: case Role::cross_wk: case Role::cross_wv: case Role::cross_wo: return "cross_attention";
    case Role::gate: case Role::up: case Role::down: return t.count > 1 ? "experts" : "feed_forward";
    case Role::router: case Role::shared_router: return "router";
    case Role::shared_gate: case Role::shared_up: case Role::shared_down: return "shared_expert";
    default: return "norms";
    }
}
inline uint64_t elements(const TensorSource& t) { return uint64_t{t.rows} * t.cols * t.count; }

// Norms of different roles that are one tensor are the constant 1 of a model whose norms have no weights. (The two
// branches of a parallel block may share a learned one.)
inline std::set<uint64_t> constant_norms(const Source& source)
{
    std::map<uint64_t, Role> roles;
    std::set<uint64_t> constants;
    for (const TensorSource& t : source.tensors) {
        if (!t.identity || part_of(t) != std::string("norms")) continue;
        const Role role = static_cast<Role>(t.role & 0x7f);
        const Role branch = role == Role::ffn_norm_pre ? Role::attn_norm_pre : role;
        if (roles.emplace(t.identity, branch).first->second != branch) constants.insert(t.identity);
    }
    return constants;
}

struct Counts {
    std::map<std::string, uint64_t> parts, types;              // parameters by part, bytes by type
    uint64_t parameters = 0, active = 0;                       // active: with the chosen experts only
    uint64_t bytes_per_token = 0; // of weights that a token's pass through the main stack reads
};
inline Counts count(const Source& source, const WriteOptions& options)
{
    Counts c;
    const std::set<uint64_t> constants = constant_norms(source);
    std::set<std::pair<uint64_t, DType>> seen;
    for (const TensorSource& t : source.tensors) {
        const Config& config = t.stack ? source.encoder : source.main;
        const std::string part = part_of(t);
        const DType type = written_type(t, options);
        const uint64_t bytes = t.count * transformer::matrix_bytes(type, t.rows, t.cols);
        const Role role = static_cast<Role>(t.role);
        const bool table = part == "tables" || constants.count(t.identity);
        const bool looked_up =
            role == Role::token_embedding || role == Role::type_embedding || role == Role::position_embedding;
        const auto share = [&](uint64_t whole) {
            return part == "experts" ? whole / t.count * config.n_experts_active : whole;
        };
        if (t.stack == 0 && part != "tables")
            c.bytes_per_token += looked_up ? bytes / std::max(t.rows, 1u) : share(bytes);
        if (t.identity && !seen.insert({t.identity, type}).second) continue; // tied or shared: it is there once
        c.types[type_name(type)] += bytes;
        if (table) continue;
        c.parts[part] += elements(t);
        c.parameters += elements(t);
        c.active += share(elements(t));
    }
    return c;
}
// The same held against what its reader counts: parameters that no slot keeps as they are (the embedding behind
// relative positions, a pooler, rows of a position table that are never looked up) are "other".
inline Counts count(const Source& source, const WriteOptions& options, const Parameters& whole)
{
    Counts c = count(source, options);
    if (whole.total > c.parameters) c.parts["other"] = whole.total - c.parameters;
    c.parameters = whole.total;
    c.active = whole.active;
    return c;
}

// Bytes of keys and values that one position adds to the cache.
inline uint64_t cache_bytes_per_token(const Config& c, DType type)
{
    constexpr uint64_t many = 4096;                            // so that no tile or row is rounded up
    return transformer::is_causal(c) ? c.n_layers * c.n_kv_heads * transformer::kv_head_bytes(c, many, type) / many : 0;
}

// ---- The configuration ----------------------------------------------------------------------------------------------

#define TRANSFORMER_CONFIG_FIELDS(X)                                                                                  \
    X(dim) X(hidden_dim) X(n_layers) X(n_heads) X(n_kv_heads) X(head_dim) X(v_head_dim) X(vocab_size) X(n_outputs)    \
    X(max_seq_len) X(embedding_dim) X(n_types) X(n_experts) X(n_experts_active) X(dense_hidden_dim)                   \
    X(shared_hidden_dim) X(n_groups) X(n_groups_active) X(q_lora_rank) X(kv_lora_rank) X(nope_head_dim)               \
    X(mla_v_head_dim) X(rope_dim) X(rope_long_from) X(window) X(window_ahead) X(chunk) X(relative_distance)           \
    X(n_features) X(n_frames) X(norm) X(activation) X(head_activation) X(router) X(pooling) X(flags)                  \
    X(decoder_start) X(norm_eps) X(qk_norm_eps) X(rope_theta) X(rope_scale) X(attn_scale) X(attn_softcap)             \
    X(logit_softcap) X(logit_scale) X(embedding_scale) X(residual_scale) X(qkv_clip) X(routed_scale)                  \
    X(temperature_floor) X(temperature_scale) X(mlp_clamp) X(mlp_alpha)
#define TRANSFORMER_COUNT_FIELD(name) + 1
static_assert(0 TRANSFORMER_CONFIG_FIELDS(TRANSFORMER_COUNT_FIELD) + sizeof(Config::reserved) / 4 == sizeof(Config) / 4,
              "a field is missing");
#undef TRANSFORMER_COUNT_FIELD

inline std::string literal(uint32_t value, bool) { return std::to_string(value); }
inline std::string literal(float value, bool cpp)
{
    const std::string text = format("%.9g", static_cast<double>(value));
    return text + (text.find_first_of(".e") == std::string::npos ? ".0" : "") + (cpp ? "f" : "");
}
template <class Enum> std::string literal(Enum value, bool cpp)
{
    const char* type = std::is_same_v<Enum, transformer::NormKind>  ? "NormKind"
                       : std::is_same_v<Enum, transformer::Router>  ? "Router"
                       : std::is_same_v<Enum, transformer::Pooling> ? "Pooling"
                                                                    : "Activation";
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

// A header for a firmware: configuration and sizes as constants, so that its buffers are exact at compile time, and
// what `model`, which was written to `file`, needs of the family.
inline std::string firmware_header(const Source& s, const transformer::Model& model, const std::string& file,
                                   uint64_t bytes, const transformer::Options& o)
{
    using transformer::Feature;
    uint32_t features = model.features;
    if (o.cache == transformer::DType::f32) features |= transformer::mask_of(Feature::f32_cache);
    if (o.cache == transformer::DType::q8_0) features |= transformer::mask_of(Feature::quantised_cache);
    const auto config = [](const char* name, const Config& c) {
        return format("constexpr transformer::Config make_%s()\n{\n    transformer::Config c;\n%s    return c;\n}\n"
                      "constexpr transformer::Config %s = make_%s();\n\n",
                      name, config_assignments(c).c_str(), name, name);
    };
    const uint64_t session = transformer::plan(s.main, s.encoder, o).at[transformer::n_regions];
    std::string out = "// " + printable(file, 200) + ": what transformer.hpp needs to know of it at compile time. " +
                      R"(Written by `run import --header`.
//
//     alignas(64) static unsigned char memory[model::session_bytes];
//     transformer::start(model, model::options, memory, sizeof memory, &session);
#ifndef TRANSFORMER_MODEL_HPP
#define TRANSFORMER_MODEL_HPP

// Include this file before transformer.hpp, in every unit: then what the model does not need costs no code. The second
// number is sampling, tokenizer, checks and messages; take away what the program does without.
#ifndef TRANSFORMER_FEATURES
#define TRANSFORMER_FEATURES )" + format("(0x%xu | 0x%xu)", features,
        transformer::mask_of(Feature::sampling, Feature::tokenizer, Feature::checks, Feature::messages)) + R"(
#endif
#include "transformer.hpp"

namespace model {

)" + config("config", s.main);
    if (s.encoder.n_layers) out += config("encoder", s.encoder);
    return out + format(R"(constexpr transformer::Options make_options()
{
    transformer::Options o;
    o.capacity = %u;
    o.batch = %u;
    o.cache = transformer::DType::%s;
    return o;
}
constexpr transformer::Options options = make_options();

constexpr uint64_t checkpoint_bytes = %llu;
constexpr uint64_t session_bytes = transformer::plan(config, %s, options).at[transformer::n_regions];
static_assert(session_bytes == %llu, "the header is of another version of transformer.hpp");

}  // namespace model
#endif
)", o.capacity, o.batch, type_name(o.cache), static_cast<unsigned long long>(bytes),
                        s.encoder.n_layers ? "encoder" : "transformer::Config{}",
                        static_cast<unsigned long long>(session));
}

}  // namespace weights
#endif
