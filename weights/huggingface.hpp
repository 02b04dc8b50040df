// weights/huggingface.hpp - a Hugging Face folder (config.json, *.safetensors) as a Source
//
// A family of models is one row of families(): its class names, the defaults of its configuration class, a table of
// where each of its tensors goes, and a function for what no table says. The numbers are those of transformers 4.57;
// both spellings of the configuration are read, version 4's (rope_theta, rope_scaling) and 5's (rope_parameters).
//
// Quirks end here: fused and transposed matrices, rotation of neighbouring pairs (rows are put in half-split order),
// 1 + w norms, positions that begin at row 2, buckets of relative positions, MLA's up-projection. A setting that
// changes the numbers and has no place in Config is refused by name, as is a tensor that no table knows.
#ifndef TRANSFORMER_WEIGHTS_HUGGINGFACE_HPP
#define TRANSFORMER_WEIGHTS_HUGGINGFACE_HPP

#include "import.hpp"
#include "safetensors.hpp"

#include <map>

namespace weights {

using transformer::Activation;
using transformer::Pooling;

// ---- Positions ------------------------------------------------------------------------------------------------------

// rope_scaling or rope_parameters of a configuration.
struct RopeSettings {
    std::string type = "default";
    double theta = 10000, factor = 1, low_freq_factor = 1, high_freq_factor = 4, beta_fast = 32, beta_slow = 1;
    double attention_factor = 0, mscale = 0, mscale_all_dim = 0; // 0: not given
    double original_positions = 0;  // that the model was first trained for
    bool truncate = true;
    std::vector<double> short_factor, long_factor;             // rope_dim / 2 each
};

inline double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// What cos and sin are multiplied by.
inline double rope_attention_factor(const RopeSettings& s)
{
    if (s.type != "yarn" && s.type != "longrope") return 1;
    if (s.attention_factor != 0) return s.attention_factor;
    if (s.type == "longrope")
        return s.factor <= 1 ? 1 : std::sqrt(1 + std::log(s.factor) / std::log(s.original_positions));
    if (s.mscale != 0 && s.mscale_all_dim != 0)
        return yarn_mscale(s.factor, s.mscale) / yarn_mscale(s.factor, s.mscale_all_dim);
    return yarn_mscale(s.factor, 1);
}

// Radians that each pair turns by from one position to the next, in f32 as transformers computes inv_freq. `beyond`:
// LongRoPE, for sequences longer than original_positions.
inline std::vector<float> rope_frequencies(const RopeSettings& s, uint32_t rope_dim, bool beyond = false)
{
    const uint32_t n = rope_dim / 2;
    const float dim = static_cast<float>(rope_dim), factor = static_cast<float>(s.factor);
    const double pi = 3.14159265358979323846;
    std::vector<float> frequencies(n);
    // YaRN: pairs that turn often in the original length stay as they are, slow ones are stretched, a ramp between.
    const auto correction = [&](double turns) {
        return static_cast<double>(rope_dim) * std::log(s.original_positions / (turns * 2 * pi)) /
               (2 * std::log(s.theta));
    };
    double low = correction(s.beta_fast), high = correction(s.beta_slow);
    low = std::max(s.truncate ? std::floor(low) : low, 0.0);
    high = std::min(s.truncate ? std::ceil(high) : high, static_cast<double>(rope_dim) - 1);
    if (low == high) high += 0.001;
    for (uint32_t i = 0; i < n; i++) {
        const float exponent = static_cast<float>(2 * i) / dim;
        const float period = static_cast<float>(std::pow(static_cast<double>(static_cast<float>(s.theta)),
            static_cast<double>(exponent)));
        float f = 1.0f / period;
        if (s.type == "linear") {
            f /= factor;
        } else if (s.type == "llama3") {
            const float original = static_cast<float>(s.original_positions),
                wavelength = 1.0f / f * static_cast<float>(2 * pi);
            const float longest = static_cast<float>(s.original_positions / s.low_freq_factor);
            const float shortest = static_cast<float>(s.original_positions / s.high_freq_factor);
            if (wavelength > longest) {
                f /= factor;
            } else if (!(wavelength < shortest)) {
                const float smooth = (1.0f / wavelength * original - static_cast<float>(s.low_freq_factor)) /
                                     static_cast<float>(s.high_freq_factor - s.low_freq_factor);
                f = (1.0f - smooth) * f / factor + smooth * f;
            }
        } else if (s.type == "yarn") {
            const float ramp = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
            const float keep = 1.0f - std::min(std::max(ramp, 0.0f), 1.0f);
            f = 1.0f / (factor * period) * (1.0f - keep) + f * keep;
        } else if (s.type == "longrope") {
            f = 1.0f / (static_cast<float>((beyond ? s.long_factor : s.short_factor).at(i)) * period);
        }
        frequencies[i] = f;
    }
    return frequencies;
}

// T5's bucket of a key at distance j - i from its query [14]. UMT5 and MPNet have the same.
inline uint32_t t5_bucket(int64_t distance, bool bidirectional, uint32_t buckets, uint32_t max_distance)
{
    uint32_t bucket = 0;
    if (bidirectional) {
        buckets /= 2;
        if (distance > 0) bucket = buckets;
        distance = distance < 0 ? -distance : distance;
    } else {
        distance = distance < 0 ? -distance : 0;
    }
    const uint32_t exact = buckets / 2;
    if (distance < exact) return bucket + static_cast<uint32_t>(distance);
    const float ratio = std::log(static_cast<float>(distance) / static_cast<float>(exact)) /
                        static_cast<float>(std::log(static_cast<double>(max_distance) / exact));
    const float large = ratio * static_cast<float>(buckets - exact);
    return bucket + std::min(exact + static_cast<uint32_t>(std::min(large, 1e9f)), buckets - 1);
}

// DeBERTa's row of its relative embeddings for a key at distance j - i: `span` is in the middle [15].
inline uint32_t deberta_row(int64_t distance, int64_t buckets, int64_t max_positions)
{
    const int64_t span = buckets > 0 ? buckets : max_positions;
    int64_t position = -distance;                              // query - key
    const int64_t mid = buckets / 2, far = position < 0 ? -position : position;
    if (buckets > 0 && far > mid) {
        const float middle = static_cast<float>(mid);
        const float log_position = std::ceil(std::log(static_cast<float>(far) / middle) /
                                             std::log(static_cast<float>(static_cast<double>(
                                                 max_positions - 1) / static_cast<double>(mid))) *
                                             static_cast<float>(mid - 1)) + middle;
        const int64_t bucket = log_position < 1e9f ? static_cast<int64_t>(log_position) : 1000000000;
        position = position < 0 ? -bucket : bucket;
    }
    return static_cast<uint32_t>(std::min(std::max(position + span, int64_t{0}), 2 * span - 1));
}

// ALiBi's slope of each head [13].
inline std::vector<float> alibi_slopes(uint32_t n_heads)
{
    uint32_t power = 1;
    while (power <= n_heads / 2) power *= 2;
    const auto base = [](uint32_t n) {
        return static_cast<float>(std::pow(2.0, -std::pow(2.0, -(std::log2(static_cast<double>(n)) - 3))));
    };
    std::vector<float> slopes;
    for (uint32_t i = 1; i <= power; i++) slopes.push_back(std::pow(base(power), static_cast<float>(i)));
    for (uint32_t i = 1; slopes.size() < n_heads; i += 2)
        slopes.push_back(std::pow(base(2 * power), static_cast<float>(i)));
    return slopes;
}
// The same as MPT counts them.
inline std::vector<float> mpt_slopes(uint32_t n_heads, double bias_max)
{
    uint32_t power = 1;
    while (power < n_heads) power *= 2;
    std::vector<float> slopes(n_heads);
    for (uint32_t i = 0; i < n_heads; i++) {
        const uint32_t j = power == n_heads ? i : i < power / 2 ? 2 * i + 1 : 2 * (i - power / 2);
        slopes[i] = 1.0f / std::pow(2.0f, static_cast<float>(j + 1) * static_cast<float>(bias_max / power));
    }
    return slopes;
}

// ---- Texts and counts -----------------------------------------------------------------------------------------------

inline std::vector<std::string> split(const std::string& text, char separator)
{
    std::vector<std::string> parts(1);
    for (const char c : text) {
        if (c == separator)
            parts.emplace_back();
        else
            parts.back() += c;
    }
    if (separator == ' ') parts.erase(std::remove(parts.begin(), parts.end(), std::string()), parts.end());
    return parts;
}
inline std::string replaced(std::string text, char mark, const std::string& by)
{
    for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + by.size()))
        text.replace(at, 1, by);
    return text;
}
inline std::string json_text(const Json& json)
{
    switch (json.kind) {
    case Json::null: return "null";
    case Json::boolean: return json.flag ? "true" : "false";
    case Json::text: return "\"" + printable(json.string) + "\"";
    case Json::list: return "a list";
    case Json::object: return "an object";
    case Json::number: break;
    }
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out << json.value;
    return json.exact ? std::to_string(json.integer) : out.str();
}

// Parameters as transformers counts them: shared ones once, tables that follow from the configuration not at all.
struct Parameters {
    uint64_t total = 0, active = 0; // active: with the chosen experts only
};

namespace huggingface {

// ---- Name maps ------------------------------------------------------------------------------------------------------

// How a tensor of the file differs from the slot that it fills.
enum : uint32_t {
    map_exact = 1,          // the name is whole: no .weight; a bias is name_bias
    map_underscore = 2,     // name_weight and name_bias
    map_is_bias = 4,        // the tensor is the slot's bias
    map_transposed = 8,     // (in, out)
    map_fused = 16,         // wq, wk and wv below each other; gate and up
    map_grouped = 32,       // with map_fused: for each kv head its queries, its key, its value
    map_blocks = 64,        // with map_fused: four blocks of query, value, key (CodeGen)
    map_pairs = 128,        // with map_fused: gate and up take turns
    map_stacked = 256,      // the experts are one tensor
    map_offset = 512,       // the first position_offset rows are not used
    map_conv = 1024,        // (out, in, tap)
    map_up = 2048,          // MLA's kv_b_proj
    map_optional = 4096,    // may be missing
    map_buffer = 8192,      // not counted as parameters
    map_unused = 16384      // counted, not read
};
struct Row {
    // below the family's prefix; # is the block, * the expert or head, | separates other spellings
    std::string name;
    Role role;
    // whether it has one: "" no, "1" yes, else the setting or condition that says so, ! for its contrary
    const char* bias = "";
    const char* when = "";  // whether the tensor is there at all, in the same words; "" yes
    uint32_t flags = 0;
};
using Rows = std::vector<Row>;
inline Rows operator+(Rows a, const Rows& b)
{
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

class Reader;

struct Head {
    const char* suffix;     // of the class name
    Rows rows;              // with whole names
    enum { none, tokens, labels } outputs = none;
    Pooling pooling = Pooling::none;
    const char* activation = ""; // of head_dense: a setting, or =name
};
struct Family {
    const char* types;      // model_type, several between blanks
    const char* stems;      // of the class names: "Llama" for LlamaForCausalLM
    const char* prefix;     // of the tensors' names, which a headless model's file lacks
    transformer::NormKind norm;
    const char* defaults;   // of the configuration class
    Rows rows;              // of the main stack
    Rows encoder;           // of an encoder-decoder's encoder
    std::vector<Head> heads; // the first counts if the configuration names no class
    void (*quirks)(Reader&);
    const char* skip = "";  // parts of names of tensors that are known and not needed, between blanks
};
inline const std::vector<Family>& families();

// ---- The reader -----------------------------------------------------------------------------------------------------

class Reader {
public:
    // `config_path`: a config.json. Without `folder` there are no weights, and reading a tensor is an error.
    Reader(const std::string& config_path, const std::string* folder) : where(config_path),
        root(read_json(config_path)), settings(&root)
    {
        if (root.kind != Json::object) throw Error(where + ": is no JSON object");
        choose_family();
        if (folder) files = std::make_shared<Safetensors>(*folder);
        main.norm = encoder.norm = family->norm;
        choose_prefix();
        main_rows = family->rows;
        family->quirks(*this);
        for (const Config* c : {&main, &encoder}) {
            const uint64_t heads = c->n_heads, latent = uint64_t{c->rope_dim} + c->nope_head_dim;
            at_most("width of all heads", heads * std::max(std::max(uint64_t{c->head_dim}, latent),
                uint64_t{c->mla_v_head_dim}), 1u << 24);
            at_most("width of the shared experts", std::max(c->shared_hidden_dim, c->hidden_dim), 1u << 24);
        }
        add_head();
        add_tensors();
        read_vocabulary();
        source.main = main;
        source.encoder = encoder;
    }

    // ---- Settings ----

    // The first of these names (between blanks) that the configuration has, then that its class has a default for.
    const Json* get(const std::string& names) const
    {
        for (const Json* json : {settings, &root, &defaults})
            for (const std::string& name : split(names, ' '))
                if (const Json* found = json->find(name)) return found;
        return nullptr;
    }
    // The same, and nullptr for null.
    const Json* given(const std::string& names) const
    {
        const Json* json = get(names);
        return json && json->kind != Json::null ? json : nullptr;
    }
    [[noreturn]] void refuse(const std::string& names, const std::string& why = "is not supported") const
    {
        const Json* json = get(names);
        std::string name = split(names, ' ')[0];
        for (const std::string& other : split(names, ' '))
            if (settings->find(other)) name = other;
        throw Error(where + ": " + name + (json ? " = " + json_text(*json) : "") + " " + why);
    }
    void refuse_if(bool wrong, const std::string& name) const
    {
        if (wrong) refuse(name);
    }
    double number(const Json& json, const std::string& names) const
    {
        if (json.kind != Json::number || !std::isfinite(json.value))
            throw Error(where + ": " + split(names, ' ')[0] + " = " + json_text(json) + " is no number");
        return json.value;
    }
    double real(const std::string& names, double otherwise) const
    {
        const Json* json = given(names);
        return json ? number(*json, names) : otherwise;
    }
    double real(const std::string& names) const
    {
        const Json* json = given(names);
        if (!json) throw Error(where + ": the setting " + split(names, ' ')[0] + " is missing");
        return number(*json, names);
    }
    uint32_t u32(const std::string& names, uint32_t otherwise) const { return given(names) ? u32(names) : otherwise; }
    uint32_t u32(const std::string& names) const { return u32_of(real(names), names); }
    float f32(const std::string& names, double otherwise) const { return static_cast<float>(real(names, otherwise)); }
    bool truth(const std::string& names, bool otherwise = false) const
    {
        const Json* json = get(names);
        if (!json) return otherwise;
        if (json->kind == Json::number) return json->value != 0;
        if (json->kind != Json::boolean && json->kind != Json::null) refuse(names, "is neither true nor false");
        return json->flag;
    }
    std::string word(const std::string& names, const std::string& otherwise = "") const
    {
        const Json* json = given(names);
        if (json && json->kind != Json::text) refuse(names, "is no text");
        return json ? json->string : otherwise;
    }
    std::vector<double> numbers(const Json* json, const std::string& name) const
    {
        std::vector<double> list;
        if (!json || json->kind != Json::list) throw Error(where + ": " + name + " is no list of numbers");
        for (const Json& n : json->items) list.push_back(number(n, name));
        return list;
    }
    // One of a list of numbers that has as many as there are layers.
    std::vector<double> layer_numbers(const std::string& name) const
    {
        const std::vector<double> list = numbers(get(name), name);
        if (list.size() != main.n_layers)
            throw Error(where + ": " + name + " has " + std::to_string(list.size()) + " entries for "
                + std::to_string(main.n_layers) + " layers");
        return list;
    }

    Activation activation(const std::string& names) const
    {
        static const std::pair<const char*, Activation> known[] = {
            {"silu", Activation::silu}, {"swish", Activation::silu}, {"gelu", Activation::gelu},
            {"gelu_python", Activation::gelu},
            {"gelu_new", Activation::gelu_tanh}, {"gelu_fast", Activation::gelu_tanh},
            {"gelu_accurate", Activation::gelu_tanh},
            {"gelu_pytorch_tanh", Activation::gelu_tanh}, {"gelu_python_tanh", Activation::gelu_tanh},
            {"relu", Activation::relu},
            {"relu2", Activation::relu_squared}, {"quick_gelu", Activation::quick_gelu}, {"tanh", Activation::tanh},
            {"linear", Activation::identity}};
        const std::string name = names[0] == '=' ? names.substr(1) : word(names);
        for (const auto& [text, value] : known)
            if (name == text) return value;
        throw Error(where + ": the activation \"" + printable(name) + "\" (" + split(names, ' ')[0]
            + ") is not supported");
    }

    // ---- The configuration of one stack ----

    void at_most(const char* what, uint64_t value, uint64_t limit) const
    {
        if (value > limit)
            throw Error(where + ": the " + what + ", " + std::to_string(value) + ", is more than "
                + std::to_string(limit));
    }
    void set_layers(Config& c, uint64_t n)
    {
        if (!n) throw Error(where + ": the number of layers must not be 0");
        at_most("number of layers", n, 10000);
        c.n_layers = static_cast<uint32_t>(n);
        if (&c == &main) flags.assign(c.n_layers, transformer::layer_local);
    }

    // `side`: "", or "encoder_" or "decoder_" where the two stacks have settings of their own.
    void fill(Config& c, const std::string& side = "")
    {
        c.dim = c.embedding_dim = u32("n_embed hidden_size n_embd d_model dim");
        set_layers(c, u32(side.empty() ? "num_hidden_layers n_layer n_layers num_layers" : side + "layers"));
        c.n_heads = u32(side.empty() ? "num_attention_heads n_head n_heads num_heads nhead" : side + "attention_heads");
        if (!c.dim || !c.n_heads) throw Error(where + ": the hidden size and the number of heads must not be 0");
        at_most("hidden size", c.dim, 1u << 24);
        at_most("number of heads", c.n_heads, 10000);
        c.n_kv_heads = u32("num_key_value_heads n_kv_heads", c.n_heads);
        if (!c.n_kv_heads || c.n_heads % c.n_kv_heads)
            throw Error(where + ": " + std::to_string(c.n_heads) + " heads cannot share "
                + std::to_string(c.n_kv_heads) + " key heads");
        if (!given("head_dim d_kv attention_head_size") && c.dim % c.n_heads)
            throw Error(where + ": the hidden size " + std::to_string(c.dim) + " is no multiple of "
                + std::to_string(c.n_heads) + " heads");
        c.head_dim = c.v_head_dim = u32("head_dim d_kv attention_head_size", c.dim / c.n_heads);
        if (!c.head_dim) refuse("head_dim");
        at_most("width of a head", c.head_dim, 1u << 16);
        const char* const widths = "intermediate_size n_inner ffn_dim d_ff ffn_hidden_size hidden_dim dim_feedforward";
        c.hidden_dim = u32(side.empty() ? widths : side + "ffn_dim", 4 * c.dim);
        c.vocab_size = u32("vocab_size", 0);
        c.max_seq_len = u32("max_position_embeddings n_positions max_seq_len seq_length", 0);
        at_most("feed-forward width", c.hidden_dim, 1u << 24);
        at_most("vocabulary", c.vocab_size, 1u << 24);
        at_most("number of positions", c.max_seq_len, 1u << 26);
        c.norm_eps = c.qk_norm_eps = f32("norm_eps norm_epsilon rms_norm_eps layer_norm_eps layer_norm_epsilon eps",
            1e-5);
        c.activation = activation("hidden_act activation_function activation hidden_activation");
        c.attn_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim)));
    }

    RopeSettings rope(const std::string& kind = "full_attention",
        const std::string& theta = "rope_theta rotary_emb_base", bool scaled = true) const
    {
        RopeSettings s;
        const std::string other = kind == "full_attention" ? "sliding_attention" : "full_attention";
        const Json* p = given("rope_parameters");
        const bool nested = p && (p->find(kind) || p->find(other));
        if (nested) p = p->find(kind);
        if (!nested && p && kind != "full_attention") refuse("rope_parameters", "has no " + kind);
        if (!nested && !p && scaled) p = given("rope_scaling");
        if (p && p->kind == Json::null) p = nullptr;
        if (p && p->kind != Json::object) refuse("rope_scaling rope_parameters", "is no object");
        const auto value = [&](const char* name, double otherwise) {
            const Json* json = p ? p->find(name) : nullptr;
            return json && json->kind != Json::null ? number(*json, name) : otherwise;
        };
        s.theta = value("rope_theta", real(theta, 10000));
        if (!(s.theta > 0)) throw Error(where + ": rope_theta must be above 0");
        if (!p) return s;
        const Json* type = p->find("rope_type");
        if (!type) type = p->find("type");
        if (type && type->kind != Json::text) throw Error(where + ": the type of rope_scaling is no text");
        if (type) s.type = type->string;
        if (s.type == "su" || (s.type == "yarn" && p->find("short_factor"))) s.type = "longrope"; // older names of it
        const double positions = main.max_seq_len;
        s.low_freq_factor = value("low_freq_factor", 1);
        s.high_freq_factor = value("high_freq_factor", 4);
        s.beta_fast = value("beta_fast", 0) != 0 ? value("beta_fast", 0) : 32;
        s.beta_slow = value("beta_slow", 0) != 0 ? value("beta_slow", 0) : 1;
        s.attention_factor = value("attention_factor", 0);
        s.mscale = value("mscale", 0);
        s.mscale_all_dim = value("mscale_all_dim", 0);
        s.original_positions = value("original_max_position_embeddings", positions);
        const Json* truncate = p->find("truncate");
        s.truncate = !truncate || truncate->kind != Json::boolean || truncate->flag;
        if (p->find("mrope_section")) throw Error(where + ": rope_scaling with mrope_section is not supported");
        if (s.type == "longrope") {
            const bool outside = given("original_max_position_embeddings") != nullptr;
            if (outside) s.original_positions = real("original_max_position_embeddings");
            s.factor = outside ? positions / s.original_positions : value("factor", positions / s.original_positions);
            s.short_factor = numbers(p->find("short_factor"), "short_factor");
            s.long_factor = numbers(p->find("long_factor"), "long_factor");
        } else if (s.type == "linear" || s.type == "llama3" || s.type == "yarn") {
            s.factor = value("factor", 0);
            if (s.factor == 0 && s.type == "yarn") s.factor = positions / s.original_positions;
        } else if (s.type == "dynamic") {
            s.type = "default";                                // the same up to max_position_embeddings
        } else if (s.type != "default") {
            throw Error(where + ": the RoPE type \"" + printable(s.type) + "\" is not supported");
        }
        if (!(s.factor > 0) || !(s.original_positions > 0 || s.type == "default"))
            throw Error(where + ": rope_scaling has no usable factor and length");
        return s;
    }

    // The rotated part of each head, and its frequencies. `local`: of the layers marked layer_rope_local.
    void set_rope(Config& c, const RopeSettings& s, uint32_t stack = 0, const RopeSettings* local = nullptr)
    {
        const Json* p = given("rope_parameters");
        const Json* part = p ? p->find("partial_rotary_factor") : nullptr;
        const double share = part ? number(*part, "partial_rotary_factor")
            : real("partial_rotary_factor rotary_pct", 1);
        if (!(share > 0 && share <= 1)) refuse("partial_rotary_factor");
        set_rope_dim(c, static_cast<uint32_t>(static_cast<double>(c.head_dim) * share), s, stack, local);
    }
    void set_rope_dim(Config& c, uint32_t rope_dim, const RopeSettings& s, uint32_t stack = 0,
        const RopeSettings* local = nullptr)
    {
        c.rope_dim = rope_dim;
        if (!c.rope_dim || c.rope_dim % 2 || c.rope_dim > c.head_dim)
            throw Error(where + ": " + std::to_string(c.rope_dim) + " rotated values of "
                + std::to_string(c.head_dim) + " in a head are not possible");
        if (s.type == "longrope" && (s.short_factor.size() != c.rope_dim / 2 || s.long_factor.size() != c.rope_dim / 2))
            throw Error(where + ": short_factor and long_factor must have " + std::to_string(c.rope_dim / 2)
                + " entries");
        c.rope_theta = static_cast<float>(s.theta);
        c.rope_scale = static_cast<float>(rope_attention_factor(s));
        if (s.type == "default" && !local) return;
        std::vector<float> rows = rope_frequencies(s, c.rope_dim), second;
        if (s.type == "longrope") {
            if (local) throw Error(where + ": LongRoPE in some layers only is not supported");
            second = rope_frequencies(s, c.rope_dim, true);
            c.rope_long_from = u32_of(s.original_positions, "original_max_position_embeddings");
        } else if (local) {
            if (rope_attention_factor(*local) != 1)
                throw Error(where + ": an attention factor in sliding layers is not supported");
            second = rope_frequencies(*local, c.rope_dim);
        }
        const uint32_t n = second.empty() ? 1 : 2;
        rows.insert(rows.end(), second.begin(), second.end());
        table(stack, 0, Role::rope_freqs, n, c.rope_dim / 2, std::move(rows));
    }

    // Which layers see a window or a chunk of `limit` keys: layer_types, or what `otherwise` says of layer i.
    void set_local(const std::function<bool(uint32_t)>& otherwise)
    {
        set_local(otherwise, u32(chunks ? "attention_chunk_size" : "sliding_window", 0));
    }
    void set_local(const std::function<bool(uint32_t)>& otherwise, uint32_t limit)
    {
        const Json* types = given("layer_types");
        if (types && (types->kind != Json::list || types->items.size() != main.n_layers))
            refuse("layer_types", "must name the kind of each layer");
        for (uint32_t i = 0; i < main.n_layers; i++) {
            const std::string type = types ? types->items[i].string : "";
            const bool chunked = type == "chunked_attention";
            if (types && !chunked && type != "sliding_attention" && type != "full_attention")
                throw Error(where + ": the layer type \"" + printable(type) + "\" is not supported");
            if (types ? type == "full_attention" : !otherwise(i)) {
                flags[i] = static_cast<uint8_t>(flags[i] & ~transformer::layer_local);
                continue;
            }
            if ((types && chunked != chunks) || !limit)
                refuse(chunks ? "attention_chunk_size" : "sliding_window", "does not fit the layer types");
            (chunks ? main.chunk : main.window) = limit;
        }
    }
    // The same window in every layer, if there is one.
    void set_window()
    {
        main.window = u32("sliding_window", 0);
        const Json* types = given("layer_types");
        for (size_t i = 0; types && i < types->items.size(); i++)
            if (types->items[i].string != (main.window ? "sliding_attention" : "full_attention"))
                refuse("layer_types", "does not fit sliding_window");
    }
    // Experts and what chooses them, for layers that `in_layer` names.
    void set_experts(uint32_t n, uint32_t chosen, uint32_t hidden, const std::function<bool(uint32_t)>& in_layer)
    {
        main.n_experts = n;
        main.n_experts_active = chosen;
        main.dense_hidden_dim = main.hidden_dim;
        main.hidden_dim = hidden;
        at_most("number of experts", mul_sat(n, main.n_layers), 1u << 18);
        if (!n || !chosen || chosen > n)
            throw Error(where + ": " + std::to_string(chosen) + " experts cannot be chosen from " + std::to_string(n));
        bool dense = false;
        for (uint32_t i = 0; i < main.n_layers; i++) {
            experts_in.push_back(in_layer(i));
            dense |= !experts_in.back();
        }
        if (!dense || main.dense_hidden_dim == hidden) main.dense_hidden_dim = 0;
    }

    // ---- Tensors ----

    TensorSource& push(uint32_t stack, uint32_t layer, uint8_t role, uint32_t rows, uint32_t cols)
    {
        TensorSource t;
        t.stack = stack;
        t.layer = layer;
        t.role = role;
        t.rows = rows;
        t.cols = cols;
        const std::string path = where;
        t.read = [path](uint32_t, uint32_t, uint32_t, float*) {
            throw Error(path + ": is a configuration; its weights are not here");
        };
        source.tensors.push_back(std::move(t));
        return source.tensors.back();
    }
    // Tensors of the same key are one.
    uint64_t identity(const std::string& key) { return identities.emplace(key, identities.size() + 1).first->second; }
    // A tensor that follows from the configuration.
    TensorSource& table(uint32_t stack, uint32_t layer, Role role, uint32_t rows, uint32_t cols,
        std::vector<float> values)
    {
        TensorSource& t = push(stack, layer, static_cast<uint8_t>(role), rows, cols);
        const auto all = std::make_shared<const std::vector<float>>(std::move(values));
        t.read = [all, cols](uint32_t, uint32_t first, uint32_t n, float* out) {
            std::copy_n(all->begin() + static_cast<std::ptrdiff_t>(size_t{first} * cols), size_t{n} * cols, out);
        };
        return t;
    }

    // The tensor of that name and shape; nullptr if there are no weights, or if it may be missing and is.
    const StoredTensor* use(const std::vector<std::string>& names, const Shape& shape, bool optional = false,
        bool counted = true, bool expert = false)
    {
        const StoredTensor* found = nullptr;
        std::string name = names[0];
        for (size_t i = names.size(); files && i-- > 0;)
            if (const StoredTensor* t = files->find(names[i])) {
                found = t;
                used.insert(name = names[i]);
            }
        if (files && !found) {
            if (optional) return nullptr;
            throw Error(where + ": the tensor " + names[0] + " is missing from the model's files");
        }
        if (found && found->shape != shape)
            throw Error(found->path + ": the tensor " + name + " has the shape " + shape_text(found->shape)
                + ", the configuration asks for " + shape_text(shape));
        if (found && found->type == StoredTensor::Type::other)
            throw Error(found->path + ": the tensor " + name + " has the type " + printable(found->type_name)
                + ", which is not read (F32, F16, BF16 and F64 are)");
        if (counted) counts[name] = {elements(shape), expert};
        return found;
    }

    Parameters parameters() const
    {
        Parameters p;
        uint64_t experts = 0;
        for (const auto& [name, count] : counts) {
            p.total += count.first;
            if (count.second) experts += count.first;
        }
        p.active = p.total - experts + (main.n_experts ? experts * main.n_experts_active / main.n_experts : 0);
        return p;
    }

    std::string where;              // for messages
    Json root, defaults;
    const Json* settings;           // root, or its text_config
    const Family* family = nullptr;
    const Head* head = nullptr;
    std::string class_name, prefix;
    std::shared_ptr<Safetensors> files;
    Source source;
    Config main, encoder;
    std::vector<uint8_t> flags;     // of each layer
    std::vector<bool> experts_in;   // layers
    std::map<std::string, bool> conditions; // that rows ask for, beside the settings
    bool interleaved = false;       // RoPE turns neighbouring pairs
    bool chunks = false;            // local layers see a chunk, not a window
    bool mean_pooling = false;
    bool tied = true;
    float norm_plus = 0;            // 1 for norms that multiply by 1 + w
    bool ones_for_norms = false;    // norms without weights
    // q_norm: for all heads, its own for each, over all
    enum { shared_norm, head_norm, full_norm } qk_norm = shared_norm;
    uint32_t position_offset = 0, head_width = 0; // head_width: what head_dense makes, 0: as many as it reads
    std::function<float(uint32_t)> query_scale; // of layer i
    Rows main_rows;                 // of the main stack: the family's unless its quirks change them
    std::vector<std::string> ignored; // parts of names, beside the family's
    std::function<std::string(uint32_t)> layer_name = [](uint32_t i) { return std::to_string(i); };

private:
    uint32_t u32_of(double value, const std::string& names) const
    {
        if (!(value >= 0 && value < 2147483648.0) || value != std::floor(value))
            throw Error(where + ": " + split(names, ' ')[0] + " is no whole number from 0 to 2^31 - 1");
        return static_cast<uint32_t>(value);
    }

    void choose_family()
    {
        const std::string type = word("model_type");
        std::string known;
        for (const Family& f : families())
            for (const std::string& name : split(f.types, ' ')) {
                known += (known.empty() ? "" : ", ") + name;
                if (name == type) family = &f;
            }
        if (type.empty())
            throw Error(where + ": there is no model_type, so this is not a Hugging Face folder as it was published"
                + (is_file(join(folder_of(where), "model.bin"))
                    ? "; model.bin suggests CTranslate2, which is not read: give the folder it was made from" : ""));
        if (!family)
            throw Error(where + ": model_type \"" + printable(type) + "\" is not supported; these are: " + known);
        class_name = split(family->stems, ' ')[0] + std::string(family->heads[0].suffix);
        if (const Json* classes = given("architectures")) {
            if (classes->kind != Json::list || classes->items.size() > 1
                || (!classes->items.empty() && classes->items[0].kind != Json::text))
                refuse("architectures", "must name one class");
            if (!classes->items.empty()) class_name = classes->items[0].string;
        }
        for (const std::string& stem : split(family->stems, ' '))
            for (const Head& h : family->heads)
                if (class_name == stem + h.suffix) head = &h;
        if (!head)
            throw Error(where + ": the class " + printable(class_name) + " is not supported for model_type " + type);
        if (const Json* text = given("text_config"))           // the text part of a model that sees
            if (text->kind == Json::object) settings = text;
        defaults = parse_json(family->defaults, "the defaults of " + type);
        source.kind = "Hugging Face " + class_name;
        tied = truth("tie_word_embeddings", true);
        if (const Json* quantised = given("quantization_config")) {
            const Json* method = quantised->find("quant_method");
            refuse("quantization_config", (method ? "with quant_method " + json_text(*method) + " " : std::string())
                + "is not supported; F32, F16, BF16 and F64 weights are");
        }
        refuse_if(truth("add_cross_attention"), "add_cross_attention");
        refuse_if(truth("tie_encoder_decoder"), "tie_encoder_decoder");
        refuse_if(given("pruned_heads") && !get("pruned_heads")->members.empty(), "pruned_heads");
    }

    // Whether a row's condition holds in a layer (from 0; ~0u: outside them).
    bool holds(std::string key, uint32_t layer) const
    {
        if (key.empty() || key == "1") return !key.empty();
        const bool negated = key[0] == '!';
        if (negated) key.erase(0, 1);
        bool value;
        if (key == "experts")
            value = layer < experts_in.size() && experts_in[layer];
        else if (key == "shared_expert")
            value = main.shared_hidden_dim && layer < experts_in.size() && experts_in[layer];
        else if (key == "first_layer")
            value = layer == 0;
        else if (const auto at = conditions.find(key); at != conditions.end())
            value = at->second;
        else
            value = truth(key);
        return value != negated;
    }

    struct Size {
        uint32_t count, rows, cols;
    };
    // The shape of a slot.
    Size size_of(Role role, const Config& c, uint32_t layer) const
    {
        const bool routed = layer < experts_in.size() && experts_in[layer], mla = c.kv_lora_rank != 0;
        const uint32_t n = routed ? c.n_experts : 1,
                       hidden = routed || !c.dense_hidden_dim ? c.hidden_dim : c.dense_hidden_dim;
        const uint32_t q = mla ? c.n_heads * (c.rope_dim + c.nope_head_dim) : c.n_heads * c.head_dim,
            width = head_width ? head_width : c.dim;
        const auto qk = [&](uint32_t heads) {
            return qk_norm == full_norm   ? Size{1, 1, heads * c.head_dim}
                   : qk_norm == head_norm ? Size{1, heads, c.head_dim}
                                          : Size{1, 1, c.head_dim};
        };
        switch (role) {
        case Role::token_embedding: return {1, c.vocab_size, c.embedding_dim};
        case Role::type_embedding: return {1, c.n_types, c.embedding_dim};
        case Role::position_embedding: return {1, c.max_seq_len,
            conditions.count("wide_positions") ? c.dim : c.embedding_dim};
        case Role::embedding_norm: return {1, 1, conditions.count("wide_embedding_norm") ? c.dim : c.embedding_dim};
        case Role::embedding_proj: return {1, c.dim, c.embedding_dim};
        case Role::conv1: return {1, c.dim, 3 * c.n_features};
        case Role::conv2: return {1, c.dim, 3 * c.dim};
        case Role::final_proj: return {1, c.embedding_dim, c.dim};
        case Role::head_dense: return {1, width, c.dim};
        case Role::head_norm: return {1, 1, width};
        case Role::lm_head: return {1, c.n_outputs, width};
        case Role::wq: case Role::cross_wq: return {1, q, c.q_lora_rank ? c.q_lora_rank : c.dim};
        case Role::wk: case Role::cross_wk: return {1, c.n_kv_heads * c.head_dim, c.dim};
        case Role::wv: case Role::cross_wv: return {1, c.n_kv_heads * c.v_head_dim, c.dim};
        case Role::wo: case Role::cross_wo: return {1, c.dim, c.n_heads * (mla ? c.mla_v_head_dim : c.v_head_dim)};
        case Role::q_norm: return qk(c.n_heads);
        case Role::k_norm: return qk(c.n_kv_heads);
        case Role::sinks: return {1, 1, c.n_heads};
        case Role::wq_a: return {1, c.q_lora_rank, c.dim};
        case Role::q_a_norm: return {1, 1, c.q_lora_rank};
        case Role::wkv_a: return {1, c.rope_dim + c.kv_lora_rank, c.dim};
        case Role::kv_a_norm: return {1, 1, c.kv_lora_rank};
        case Role::wk_b: return {c.n_heads, c.kv_lora_rank, c.nope_head_dim};
        case Role::wv_b: return {c.n_heads, c.mla_v_head_dim, c.kv_lora_rank};
        case Role::gate: case Role::up: return {n, hidden, c.dim};
        case Role::down: return {n, c.dim, hidden};
        case Role::router: return {1, c.n_experts, c.dim};
        case Role::router_bias: return {1, 1, c.n_experts};
        case Role::shared_gate: case Role::shared_up: return {1, c.shared_hidden_dim, c.dim};
        case Role::shared_down: return {1, c.dim, c.shared_hidden_dim};
        case Role::shared_router: return {1, 1, c.dim};
        default: return {1, 1, c.dim};                         // the norms of the residual stream
        }
    }
    static bool is_norm(Role role)
    {
        return role == Role::embedding_norm || role == Role::final_norm || role == Role::head_norm ||
               role == Role::q_norm || role == Role::k_norm || role == Role::q_a_norm || role == Role::kv_a_norm ||
               (role >= Role::attn_norm_pre && role <= Role::ffn_norm_out);
    }

    // Where element (matrix, row, column) of a slot stands in the file.
    struct Pick {
        std::vector<const StoredTensor*> parts; // one, or one for each matrix, or for each row
        uint64_t first = 0, matrix = 0, row = 0, column = 1; // elements
        uint32_t cols = 0, inner = 0;           // column c is (c / inner) + (c % inner) * column
        uint32_t run = 0, period = 0;           // row r is (r / run) * period + r % run
        uint32_t head = 0, rope = 0;            // of each head's rows the first `rope` are rotated;
        bool pairs = false, rope_last = false;  // in the file: as neighbouring pairs, at the head's end
        bool flat = false;                      // a vector: what holds for rows holds for its columns
        bool part_a_row = false;
        float scale = 1, add = 0;
        std::shared_ptr<Safetensors> files;     // keeps the parts alive

        uint64_t source_row(uint64_t r) const
        {
            if (head) {
                const uint64_t base = r / head * head, i = r % head, half = rope / 2;
                const uint64_t turned = pairs ? (i < half ? 2 * i : 2 * (i - half) + 1) : i;
                r = base + (i < rope ? turned + (rope_last ? head - rope : 0) : i - (rope_last ? rope : 0));
            }
            return run ? r / run * period + r % run : r;
        }
        void read(uint32_t m, uint32_t from, uint32_t n, float* out) const
        {
            for (uint32_t i = 0; i < n; i++, out += cols) {
                const uint64_t r = uint64_t{from} + i;
                const StoredTensor& t = *parts[parts.size() == 1 ? 0 : part_a_row ? static_cast<size_t>(r) : m];
                const uint64_t at = first + (parts.size() == 1 ? m * matrix : 0);
                if (flat) {
                    const uint64_t begin = part_a_row ? 0 : r * cols;
                    for (uint32_t c = 0; c < cols; c++) t.read(at + source_row(begin + c), 1, 1, out + c);
                } else {
                    for (uint32_t c = 0; c < cols; c += inner)
                        t.read(at + source_row(r) * row + c / inner, column, inner, out + c);
                }
                if (scale != 1.0f || add != 0.0f)
                    for (uint32_t c = 0; c < cols; c++) out[c] = out[c] * scale + add;
            }
        }
    };

    void add_rows(const Rows& rows, uint32_t stack, const Config& c)
    {
        for (const Row& row : rows)
            if (row.name.find('#') != std::string::npos)
                for (uint32_t i = 0; i < c.n_layers; i++) add_row(row, stack, c, i + 1, prefix);
            else
                add_row(row, stack, c, 0, prefix);
    }
    void add_row(const Row& row, uint32_t stack, const Config& c, uint32_t layer, const std::string& before)
    {
        if (row.when[0] && !holds(row.when, layer - 1)) return;
        add_tensor(row, stack, c, layer, before, (row.flags & map_is_bias) != 0);
        if (holds(row.bias, layer - 1)) add_tensor(row, stack, c, layer, before, true);
    }

    void add_tensor(const Row& row, uint32_t stack, const Config& c, uint32_t layer, const std::string& before,
        bool bias)
    {
        const Role role = row.role;
        const bool norm = is_norm(role), vector = bias || norm || role == Role::sinks || role == Role::router_bias;
        const uint32_t f = row.flags;
        const Size whole = size_of(role, c, layer - 1), size = bias && !norm ? Size{whole.count, 1, whole.rows} : whole;
        const bool many = row.name.find('*') != std::string::npos,
            expert = whole.count > 1 && role >= Role::gate && role <= Role::down;

        if (norm && ones_for_norms) {
            if (!bias)
                table(stack, layer, role, size.rows, size.cols, std::vector<float>(size.cols, 1.0f)).identity =
                    identity("ones");
            return;
        }

        // Its place in a fused matrix.
        Pick pick;
        const uint64_t n = vector ? uint64_t{size.rows} * size.cols : size.rows;
        uint64_t total = n, offset = 0;
        const bool is_q = role == Role::wq || role == Role::cross_wq, is_k = role == Role::wk || role == Role::cross_wk;
        if ((f & map_fused) && (role == Role::gate || role == Role::up)) {
            total = 2 * n;
            offset = role == Role::gate ? 0 : f & map_pairs ? 1 : n;
            if (f & map_pairs) {
                pick.run = 1;
                pick.period = 2;
            }
        } else if (f & map_fused) {
            const uint32_t d = c.head_dim, q = c.n_heads * d, k = c.n_kv_heads * d,
                group = c.n_heads / c.n_kv_heads * d;
            total = uint64_t{q} + 2 * uint64_t{k};
            offset = is_q ? 0 : is_k ? q : q + k;
            if (f & map_grouped) {
                pick.run = is_q ? group : d;
                pick.period = group + 2 * d;
                offset = is_q ? 0 : is_k ? group : group + d;
            } else if (f & map_blocks) {
                pick.run = q / 4;
                pick.period = 3 * pick.run;
                offset = is_q ? 0 : is_k ? 2 * pick.run : pick.run;
            }
        }

        // The order of rotated rows.
        const bool norm_of_heads = (role == Role::q_norm || role == Role::k_norm) && qk_norm != shared_norm;
        if (c.kv_lora_rank && (role == Role::wq || role == Role::wkv_a)) {
            pick.head = role == Role::wq ? c.rope_dim + c.nope_head_dim : c.rope_dim + c.kv_lora_rank;
            pick.rope = c.rope_dim;
            pick.pairs = interleaved;
            pick.rope_last = true;
        } else if (interleaved && c.rope_dim && (role == Role::wq || role == Role::wk || norm_of_heads)) {
            pick.head = c.head_dim;
            pick.rope = c.rope_dim;
            pick.pairs = true;
        }

        // Its shape in the file.
        Shape shape;
        if (vector) {
            const bool heads = norm && size.rows > 1;          // (heads, head_dim)
            shape = heads && !many ? Shape{size.rows, size.cols} : heads ? Shape{size.cols} : Shape{total};
            if (f & map_stacked) shape.insert(shape.begin(), size.count);
            if (role == Role::lm_head && bias && (f & map_buffer)) shape = {1, total}; // final_logits_bias
            pick.matrix = total;
        } else if (f & map_up) {
            const uint64_t both = uint64_t{c.nope_head_dim} + c.mla_v_head_dim;
            shape = {c.n_heads * both, c.kv_lora_rank};
            pick.matrix = both * c.kv_lora_rank;
            if (role == Role::wv_b) offset = c.nope_head_dim;
        } else {
            shape = {total, size.cols};
            if (f & map_offset) shape[0] += offset = position_offset;
            if (f & map_transposed) std::swap(shape[0], shape[1]);
            if (f & map_conv) shape = {total, size.cols / 3, 3};
            pick.matrix = total * size.cols;
            if (f & map_stacked) shape.insert(shape.begin(), size.count);
        }
        const bool across = (f & map_transposed) != 0 || role == Role::wk_b;
        const uint64_t length = role == Role::wk_b ? c.kv_lora_rank : total; // of a row of the file, if `across`
        pick.flat = vector;
        pick.part_a_row = many && norm;
        pick.cols = size.cols;
        pick.inner = f & map_conv ? size.cols / 3 : size.cols;
        pick.row = across || vector ? 1 : size.cols;
        pick.column = across ? length : f & map_conv ? 3 : 1;
        pick.first = offset * pick.row;
        pick.add = norm && !bias ? norm_plus : 0;
        if (is_q && query_scale && layer) pick.scale = query_scale(layer - 1);

        // Its names, one list of spellings for each part.
        const char* const suffix = bias ? (f & map_exact ? (f & map_is_bias ? "" : "_bias")
                                           : f & map_underscore ? "_bias" : ".bias")
                                        : (f & map_exact ? "" : f & map_underscore ? "_weight" : ".weight");
        std::vector<std::string> spellings;
        for (const std::string& name : split(row.name, '|'))
            spellings.push_back(before + (layer ? replaced(name, '#', layer_name(layer - 1)) : name) + suffix);
        if (role == Role::token_embedding && stack == 0) embedding_names = spellings;
        if (role == Role::lm_head && !bias && tied && head->outputs == Head::tokens) {
            for (const std::string& name : spellings) used.insert(name);
            spellings = embedding_names;
        }
        std::string key;
        const uint32_t parts = many ? (norm ? size.rows : size.count) : 1;
        for (uint32_t i = 0; i < parts; i++) {
            std::vector<std::string> names;
            for (const std::string& s : spellings) names.push_back(many ? replaced(s, '*', std::to_string(i)) : s);
            const StoredTensor* t = use(names, shape, (f & (map_optional | map_unused)) != 0, !(f & map_buffer),
                expert);
            if (files && !t) return;
            if (t) pick.parts.push_back(t);
            key += names[0] + " ";
        }
        if ((f & map_unused) || (!files && (f & map_optional))) return;

        const uint8_t number = static_cast<uint8_t>(static_cast<uint8_t>(role) | (bias ? transformer::role_bias : 0));
        TensorSource& target = push(stack, layer, number, size.rows, size.cols);
        target.count = size.count;
        for (const uint64_t value : {pick.first, pick.row, uint64_t{pick.run}, uint64_t{pick.period},
            uint64_t{pick.head}, uint64_t{size.count}, uint64_t{size.rows}})
            key += std::to_string(value) + " ";
        key += role == Role::wk_b ? "k" : "";
        target.identity = identity(key);
        target.stored = files ? pick.parts[0]->kept() : configured_type();
        if (pick.scale != 1.0f) target.stored = DType::f32;    // a scaled value has no room in 16 bits
        if (files) {
            pick.files = files;
            target.read = [pick](uint32_t m, uint32_t first, uint32_t rows, float* out) {
                pick.read(m, first, rows, out);
            };
        }
    }

    // What the class puts on top of the blocks. Encoders are published without their head under its class name; a file
    // whose names lack the prefix and that has nothing of the head is one.
    void add_head()
    {
        if (files && prefix != family->prefix && !head->rows.empty() && head->rows[0].role == Role::head_dense) {
            bool any = false;
            for (const Row& row : head->rows)
                for (const std::string& name : split(row.name, '|'))
                    for (const char* suffix : {"", ".weight", ".bias"}) any |= files->find(name + suffix) != nullptr;
            if (!any) head = &family->heads[0];                // the headless class
        }

        if (head->outputs == Head::tokens) main.n_outputs = main.vocab_size;
        if (head->outputs == Head::labels) {
            const Json* names = given("id2label");
            main.n_outputs = names ? u32_of(static_cast<double>(names->members.size()), "id2label")
                : u32("num_labels _num_labels", 2);
        }
        if (head->outputs != Head::none && !main.n_outputs) throw Error(where + ": the model has no outputs");
        main.pooling = head->pooling == Pooling::first && mean_pooling ? Pooling::mean : head->pooling;
        if (head->activation[0]) main.head_activation = activation(head->activation);
    }

    // All tensors of the tables, then everything that is left over is an error.
    void add_tensors()
    {
        add_rows(main_rows, 0, main);
        if (encoder.n_layers) add_rows(family->encoder, 1, encoder);
        for (const Row& row : head->rows)
            add_row(row, 0, main, 0, prefix.rfind("language_model.", 0) == 0 ? "language_model." : "");
        bool differ = false;
        for (const uint8_t f : flags)
            differ |= main.window || main.chunk ? f != transformer::layer_local : f > transformer::layer_local;
        if (differ) {
            const bool limited = main.window || main.chunk;
            std::vector<float> values;
            for (const uint8_t f : flags) values.push_back(limited ? f : f & ~transformer::layer_local);
            table(0, 0, Role::layer_flags, 1, main.n_layers, std::move(values)).stored = DType::u8;
        }
        if (!files) return;
        std::string left;
        for (const auto& [name, tensor] : files->all())
            if (!used.count(name) && !skipped(name) && (left.empty() || name < left)) left = name;
        if (!left.empty())
            throw Error(where + ": the tensor " + printable(left, 200) + " has no place in a " + class_name);
    }

    DType configured_type() const
    {
        const std::string name = word("dtype torch_dtype", "float32");
        return name == "bfloat16" ? DType::bf16 : name == "float16" ? DType::f16 : DType::f32;
    }

    // What the names in the file begin with: the text part inside a model that sees, the whole model, or its headless
    // part.
    void choose_prefix()
    {
        const std::string own = family->prefix, without = own.substr(own.find('.') + 1);
        prefix = own;
        if (!files) return;
        for (const std::string& candidate : {"language_model." + own, own + "language_model.", own, without})
            for (const auto& [name, tensor] : files->all())
                if (name.rfind(candidate, 0) == 0) {
                    prefix = candidate;
                    return;
                }
    }
    bool skipped(const std::string& name) const
    {
        static const char* const always = ".inv_freq .position_ids .token_type_ids";
        for (const std::string& part : split(std::string(always) + " " + family->skip, ' '))
            if (name.find(part) != std::string::npos) return true;
        for (const std::string& part : ignored)
            if (name.find(part) != std::string::npos) return true;
        return false;
    }

    void read_vocabulary()
    {
        VocabularySource& v = source.vocabulary;
        const auto id = [&](const Json* json) {
            const bool good = json && json->exact && json->integer >= 0 && json->integer < INT32_MAX;
            return good ? static_cast<int32_t>(json->integer) : -1;
        };
        const auto stop = [&](const Json* json) {
            std::vector<Json> one;
            if (json && json->kind == Json::number) one.push_back(*json);
            for (const Json& n : json && json->kind == Json::list ? json->items : one)
                if (id(&n) >= 0 && std::find(v.stop.begin(), v.stop.end(), id(&n)) == v.stop.end())
                    v.stop.push_back(id(&n));
        };
        v.bos = id(given("bos_token_id"));
        v.pad = id(given("pad_token_id"));
        stop(given("eos_token_id"));
        const std::string generation = join(folder_of(where), "generation_config.json");
        if (is_file(generation)) {
            const Json json = read_json(generation);
            stop(json.find("eos_token_id"));
        }
        if (!v.stop.empty()) v.eos = v.stop[0];
        if (head->outputs != Head::labels) return;
        const Json* labels = given("id2label");
        std::map<int64_t, std::string> sorted;
        for (size_t i = 0; labels && i < labels->members.size(); i++)
            sorted[std::strtoll(labels->members[i].key.c_str(), nullptr, 10)] = labels->members[i].value.string;
        for (const auto& [number, name] : sorted) v.labels += (v.labels.empty() ? "" : "\n") + name;
    }

    std::vector<std::string> embedding_names;
    std::set<std::string> used;
    std::map<std::string, std::pair<uint64_t, bool>> counts; // elements, of an expert
    std::map<std::string, uint64_t> identities;
};

// ---- What the tables share ------------------------------------------------------------------------------------------

inline Rows attention_rows(const std::string& at, const char* qkv, const char* o, const std::string& out = "out_proj",
    bool cross = false, const char* k = nullptr)
{
    const auto role = [&](Role self, Role other) { return cross ? other : self; };
    return {{at + "q_proj", role(Role::wq, Role::cross_wq), qkv},
            {at + "k_proj", role(Role::wk, Role::cross_wk), k ? k : qkv},
            {at + "v_proj", role(Role::wv, Role::cross_wv), qkv},
            {at + out, role(Role::wo, Role::cross_wo), o}};
}
// wq, wk and wv out of one matrix.
inline Rows fused_rows(const std::string& name, const char* bias, uint32_t flags = 0, bool cross = false)
{
    return {{name, cross ? Role::cross_wq : Role::wq, bias, "", flags | map_fused},
            {name, cross ? Role::cross_wk : Role::wk, bias, "", flags | map_fused},
            {name, cross ? Role::cross_wv : Role::wv, bias, "", flags | map_fused}};
}
inline Rows gated_rows(const std::string& at, const char* bias, const char* when = "")
{
    return {{at + "gate_proj", Role::gate, bias, when}, {at + "up_proj", Role::up, bias, when},
        {at + "down_proj", Role::down, bias, when}};
}
inline Rows fused_gated_rows(const std::string& at)
{
    return {{at + "gate_up_proj", Role::gate, "", "", map_fused}, {at + "gate_up_proj", Role::up, "", "", map_fused},
        {at + "down_proj", Role::down}};
}
inline Rows plain_rows(const std::string& up, const std::string& down, const char* bias, uint32_t flags = 0)
{
    return {{up, Role::up, bias, "", flags}, {down, Role::down, bias, "", flags}};
}
inline Rows qk_norm_rows(const char* when = "", const char* bias = "", const std::string& q = "q_norm",
    const std::string& k = "k_norm")
{
    return {{"layers.#.self_attn." + q, Role::q_norm, bias, when},
        {"layers.#.self_attn." + k, Role::k_norm, bias, when}};
}
inline Rows ends_rows(const std::string& embedding = "embed_tokens", const std::string& norm = "norm",
    const char* norm_bias = "")
{
    return {{embedding, Role::token_embedding}, {norm, Role::final_norm, norm_bias}};
}
inline Rows pre_norm_rows(const char* bias = "", const std::string& at = "layers.#.")
{
    return {{at + "input_layernorm", Role::attn_norm_pre, bias},
        {at + "post_attention_layernorm", Role::ffn_norm_pre, bias}};
}
// One norm for both branches of a parallel block.
inline Rows parallel_norm_rows(const std::string& name, const char* bias, const char* when = "")
{
    return {{name, Role::attn_norm_pre, bias, when}, {name, Role::ffn_norm_pre, bias, when}};
}
inline Rows llama_attention(const char* qkv = "attention_bias", const char* o = "attention_bias")
{
    return attention_rows("layers.#.self_attn.", qkv, o, "o_proj");
}
inline Rows llama_rows(const char* qkv = "attention_bias", const char* o = "attention_bias",
    const char* mlp = "mlp_bias")
{
    return ends_rows() + pre_norm_rows() + llama_attention(qkv, o) + gated_rows("layers.#.mlp.", mlp);
}
inline Rows sandwich_norm_rows()
{
    return {{"layers.#.input_layernorm", Role::attn_norm_pre},
        {"layers.#.post_attention_layernorm", Role::attn_norm_post},
            {"layers.#.pre_feedforward_layernorm", Role::ffn_norm_pre},
            {"layers.#.post_feedforward_layernorm", Role::ffn_norm_post}};
}
inline Rows expert_rows(const std::string& at, const std::string& router, const std::string& gate,
    const std::string& up, const std::string& down, const char* bias = "")
{
    return {{at + router, Role::router, "", "experts"}, {at + "experts.*." + gate, Role::gate, bias, "experts"},
            {at + "experts.*." + up, Role::up, bias, "experts"},
            {at + "experts.*." + down, Role::down, bias, "experts"}};
}
inline Rows shared_expert_rows(const std::string& at, const char* bias = "")
{
    return {{at + "gate_proj", Role::shared_gate, bias, "shared_expert"},
        {at + "up_proj", Role::shared_up, bias, "shared_expert"},
            {at + "down_proj", Role::shared_down, bias, "shared_expert"}};
}
inline std::vector<Head> decoder_heads(const std::string& lm_head = "lm_head", const char* bias = "",
    const char* suffix = "ForCausalLM")
{
    return {{suffix, {{lm_head, Role::lm_head, bias}}, Head::tokens},
            {"Model", {}, Head::none},
            {"ForSequenceClassification", {{"score", Role::lm_head}}, Head::labels, Pooling::last}};
}

inline Rows bert_rows()
{
    return {{"embeddings.word_embeddings", Role::token_embedding},
            {"embeddings.token_type_embeddings", Role::type_embedding, "", "token_types"},
            {"embeddings.position_embeddings", Role::position_embedding, "", "absolute_positions", map_offset},
            {"embeddings.position_embeddings", Role::position_embedding, "", "!absolute_positions", map_unused},
            {"embeddings.LayerNorm", Role::embedding_norm, "1"},
            {"encoder.layer.#.attention.self.query", Role::wq, "1"},
            {"encoder.layer.#.attention.self.key", Role::wk, "1"},
            {"encoder.layer.#.attention.self.value", Role::wv, "1"},
            {"encoder.layer.#.attention.output.dense", Role::wo, "1"},
            {"encoder.layer.#.attention.output.LayerNorm", Role::attn_norm_out, "1"},
            {"encoder.layer.#.intermediate.dense", Role::up, "1"},
            {"encoder.layer.#.output.dense", Role::down, "1"},
            {"encoder.layer.#.output.LayerNorm", Role::ffn_norm_out, "1"}};
}
// Token and question heads are one matrix over every row.
inline std::vector<Head> row_heads()
{
    return {{"ForTokenClassification", {{"classifier", Role::lm_head, "1"}}, Head::labels},
            {"ForQuestionAnswering", {{"qa_outputs", Role::lm_head, "1"}}, Head::labels}};
}
inline std::vector<Head> operator+(std::vector<Head> a, const std::vector<Head>& b)
{
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
inline Rows mlm_rows(const std::string& dense, const std::string& norm, const std::string& decoder,
    const std::string& bias)
{
    return {{dense, Role::head_dense, "1"}, {norm, Role::head_norm, "1"}, {decoder, Role::lm_head},
            {bias, Role::lm_head, "", "", map_exact | map_is_bias}};
}
inline Rows classifier_rows(const std::string& dense, const std::string& out)
{
    return {{dense, Role::head_dense, "1"}, {out, Role::lm_head, "1"}};
}

// BART and what came of it: the encoder's or the decoder's half.
inline Rows bart_rows(const std::string& side, const char* k_bias = "1")
{
    const std::string at = side + ".layers.#.";
    const bool decoder = side == "decoder";
    Rows rows = {{"shared|encoder.embed_tokens|decoder.embed_tokens", Role::token_embedding, "", "shared_embedding"},
                 {side + ".embed_tokens", Role::token_embedding, "", "!shared_embedding"},
                 {side + ".embed_positions", Role::position_embedding, "", "!sinusoids", map_offset},
                 {side + ".embed_positions", Role::position_embedding, "", "sinusoids", map_optional},
                 {side + ".layernorm_embedding", Role::embedding_norm, "1", "embedding_norm"},
                 {side + ".layer_norm", Role::final_norm, "1", "pre_norm"},
                 {at + "self_attn_layer_norm", Role::attn_norm_pre, "1", "pre_norm"},
                 {at + "self_attn_layer_norm", Role::attn_norm_out, "1", "!pre_norm"},
                 {at + "final_layer_norm", Role::ffn_norm_pre, "1", "pre_norm"},
                 {at + "final_layer_norm", Role::ffn_norm_out, "1", "!pre_norm"}};
    if (decoder)
        rows = rows + attention_rows(at + "encoder_attn.", "1", "1", "out_proj", true, k_bias) +
               Rows{{at + "encoder_attn_layer_norm", Role::cross_norm_pre, "1", "pre_norm"},
                   {at + "encoder_attn_layer_norm", Role::cross_norm_out, "1", "!pre_norm"}};
    return rows + attention_rows(at + "self_attn.", "1", "1", "out_proj", false, k_bias)
        + plain_rows(at + "fc1", at + "fc2", "1");
}
inline Rows t5_rows(const std::string& side)
{
    const std::string at = side + ".block.#.layer.";
    const bool decoder = side == "decoder";
    Rows rows = {{"shared|encoder.embed_tokens|decoder.embed_tokens", Role::token_embedding},
                 {side + ".final_layer_norm", Role::final_norm},
                 {at + "0.layer_norm", Role::attn_norm_pre},
                 {at + "0.SelfAttention.q", Role::wq},
                 {at + "0.SelfAttention.k", Role::wk},
                 {at + "0.SelfAttention.v", Role::wv},
                 {at + "0.SelfAttention.o", Role::wo}};
    if (decoder)
        rows = rows + Rows{{at + "1.layer_norm", Role::cross_norm_pre},
                           {at + "1.EncDecAttention.q", Role::cross_wq},
                           {at + "1.EncDecAttention.k", Role::cross_wk},
                           {at + "1.EncDecAttention.v", Role::cross_wv},
                           {at + "1.EncDecAttention.o", Role::cross_wo}};
    const std::string ff = at + (decoder ? "2." : "1.");
    return rows + Rows{{ff + "layer_norm", Role::ffn_norm_pre},
                       {ff + "DenseReluDense.wi", Role::up, "", "!gated"},
                       {ff + "DenseReluDense.wi_0", Role::gate, "", "gated"},
                       {ff + "DenseReluDense.wi_1", Role::up, "", "gated"},
                       {ff + "DenseReluDense.wo", Role::down}};
}
// torch.nn.TransformerEncoderLayer and TransformerDecoderLayer.
inline Rows torch_rows(const std::string& at, bool decoder)
{
    const auto norm = [&](const std::string& name, Role pre, Role out) {
        return Rows{{at + name, pre, "1", "norm_first"}, {at + name, out, "1", "!norm_first"}};
    };
    Rows rows = fused_rows(at + "self_attn.in_proj", "1", map_underscore)
        + Rows{{at + "self_attn.out_proj", Role::wo, "1"}} +
                plain_rows(at + "linear1", at + "linear2", "1")
                    + norm("norm1", Role::attn_norm_pre, Role::attn_norm_out) +
                norm(decoder ? "norm3" : "norm2", Role::ffn_norm_pre, Role::ffn_norm_out);
    if (decoder)
        rows = rows + fused_rows(at + "multihead_attn.in_proj", "1", map_underscore, true)
            + Rows{{at + "multihead_attn.out_proj", Role::cross_wo, "1"}} +
               norm("norm2", Role::cross_norm_pre, Role::cross_norm_out);
    return rows;
}
inline Rows modern_rows(const std::string& side)
{
    const std::string at = side + ".#.";
    const auto whole = [&](const std::string& name, Role role) { return Row{name, role, "", "", map_exact}; };
    Rows rows = {whole(side == "decoder" ? "tgt_embed" : "src_embed", Role::token_embedding),
        whole(side + "_norm", Role::final_norm),
                 whole(at + "n1", Role::attn_norm_pre), whole(at + "n3", Role::ffn_norm_pre),
                     whole(at + "wq", Role::wq), whole(at + "wk", Role::wk),
                 whole(at + "wv", Role::wv), whole(at + "wo", Role::wo), whole(at + "gate", Role::gate),
                     whole(at + "up", Role::up), whole(at + "down", Role::down)};
    if (side == "decoder")
        rows = rows + Rows{whole(at + "n2", Role::cross_norm_pre), whole(at + "cq", Role::cross_wq),
            whole(at + "ck", Role::cross_wk),
                           whole(at + "cv", Role::cross_wv), whole(at + "co", Role::cross_wo)};
    return rows;
}

// ---- What no table says ---------------------------------------------------------------------------------------------

inline void rotary_decoder(Reader& r)
{
    r.fill(r.main);
    r.set_rope(r.main, r.rope());
}
inline void parallel(Reader& r, bool on = true)
{
    if (on) r.main.flags |= transformer::flag_parallel;
    r.conditions["parallel"] = on;
}
inline void add_alibi(Reader& r, std::vector<float> slopes)
{
    r.table(0, 0, Role::alibi_slopes, 1, r.main.n_heads, std::move(slopes));
}

// relative_bias of every layer from a (buckets, heads) table, which `name` says for each.
inline void add_relative_bias(Reader& r, Config& c, uint32_t stack, uint32_t buckets, uint32_t max_distance,
                              const std::function<std::string(uint32_t)>& name)
{
    const bool both = !transformer::is_causal(c);
    const uint32_t exact = (both ? buckets / 2 : buckets) / 2;
    if (!exact || max_distance <= exact || max_distance > 65536 || buckets > 65536)
        throw Error(r.where + ": " + std::to_string(buckets) + " buckets for " + std::to_string(max_distance)
            + " positions are not possible");
    c.relative_distance = max_distance;
    const uint32_t cols = 2 * max_distance + 1, heads = c.n_heads;
    for (uint32_t i = 0; i < c.n_layers; i++) {
        const std::string source = r.prefix + name(i);
        const StoredTensor* t = r.use({source}, {buckets, heads});
        TensorSource& target = r.push(stack, i + 1, static_cast<uint8_t>(Role::relative_bias), heads, cols);
        target.identity = r.identity(source + " expanded");
        if (!t) continue;
        const auto files = r.files;
        target.read = [files, t, both, buckets, max_distance, cols, heads](uint32_t, uint32_t first, uint32_t n,
            float* out) {
            for (uint32_t h = first; h < first + n; h++)
                for (uint32_t column = 0; column < cols; column++) {
                    const int64_t distance = int64_t{column} - max_distance;
                    t->read(uint64_t{t5_bucket(distance, both, buckets, max_distance)} * heads + h, 1, 1, out++);
                }
        };
    }
}

// BERT's relative_key: one vector a distance, for all heads; row i - j + M.
inline void add_relative_keys(Reader& r, const std::string& layer, bool queries_too)
{
    Config& c = r.main;
    r.at_most("number of positions", c.max_seq_len, 65536);
    if (!c.max_seq_len) r.refuse("max_position_embeddings");
    const uint32_t m = c.max_seq_len - 1, d = c.head_dim, heads = c.n_heads, rows = 2 * m + 1;
    c.relative_distance = m;
    std::vector<float> index;
    for (uint32_t column = 0; column < rows; column++) index.push_back(static_cast<float>(rows - 1 - column));
    r.table(0, 0, Role::relative_rows, 1, rows, std::move(index));
    for (uint32_t i = 0; i < c.n_layers; i++) {
        const std::string name = r.prefix + replaced(layer, '#', std::to_string(i)) + "distance_embedding.weight";
        const StoredTensor* t = r.use({name}, {rows, d});
        for (const Role role : {Role::rel_key, Role::rel_query}) {
            if (role == Role::rel_query && !queries_too) continue;
            TensorSource& target = r.push(0, i + 1, static_cast<uint8_t>(role), rows, heads * d);
            target.identity = r.identity(name + " repeated");
            if (!t) continue;
            const auto files = r.files;
            target.read = [files, t, d, heads](uint32_t, uint32_t first, uint32_t n, float* out) {
                for (uint32_t row = first; row < first + n; row++)
                    for (uint32_t h = 0; h < heads; h++, out += d) t->read(uint64_t{row} * d, 1, d, out);
            };
        }
    }
}

// DeBERTa: the relative embeddings, normalised, through each layer's key and query projection.
inline void add_disentangled(Reader& r, uint32_t buckets, uint32_t max_positions)
{
    Config& c = r.main;
    const uint32_t span = buckets ? buckets : max_positions, rows = 2 * span, width = c.n_heads * c.head_dim,
        dim = c.dim;
    uint32_t m = max_positions;                                // from here on all distances have one row
    const auto settled = [&](int64_t d) {
        return deberta_row(-d, buckets, max_positions) == rows - 1 && deberta_row(d, buckets, max_positions) == 0;
    };
    while (m < 4 * (max_positions + span) && !settled(m)) m++;
    c.relative_distance = m;
    std::vector<float> index;
    for (int64_t column = 0; column <= 2 * int64_t{m}; column++)
        index.push_back(static_cast<float>(deberta_row(column - m, buckets, max_positions)));
    r.table(0, 0, Role::relative_rows, 1, 2 * m + 1, std::move(index));

    const std::string at = r.prefix + "encoder.";
    const StoredTensor* const table = r.use({at + "rel_embeddings.weight"}, {rows, dim});
    const bool normalised = r.word("norm_rel_ebd").find("layer_norm") != std::string::npos;
    const StoredTensor* const gain = normalised ? r.use({at + "LayerNorm.weight"}, {dim}) : nullptr;
    const StoredTensor* const shift = normalised ? r.use({at + "LayerNorm.bias"}, {dim}) : nullptr;
    const float eps = c.norm_eps;
    const bool shared = r.truth("share_att_key");
    for (uint32_t i = 0; i < c.n_layers; i++)
        for (const bool key : {true, false}) {
            if (!r.conditions[key ? "c2p" : "p2c"]) continue;
            const std::string name = at + "layer." + std::to_string(i) + ".attention.self."
                + (shared ? key ? "key_proj" : "query_proj" : key ? "pos_key_proj" : "pos_query_proj");
            const StoredTensor* const w = r.use({name + ".weight"}, {width, dim});
            const StoredTensor* const b = r.use({name + ".bias"}, {width});
            TensorSource& target = r.push(0, i + 1, static_cast<uint8_t>(key ? Role::rel_key : Role::rel_query), rows,
                width);
            target.identity = r.identity(name + " of relative positions");
            if (!w) continue;
            const auto files = r.files;
            target.read = [=](uint32_t, uint32_t first, uint32_t n, float* out) {
                std::vector<float> x(dim), weight(dim), bias(width), normed(size_t{n} * dim), g(dim, 1.0f),
                    s(dim, 0.0f);
                b->read(0, 1, width, bias.data());
                if (gain) gain->read(0, 1, dim, g.data());
                if (shift) shift->read(0, 1, dim, s.data());
                for (uint32_t row = 0; row < n; row++) {
                    table->read(uint64_t{first + row} * dim, 1, dim, x.data());
                    double mean = 0, variance = 0;
                    for (const float v : x) mean += static_cast<double>(v) / dim;
                    for (const float v : x)
                        variance += (static_cast<double>(v) - mean) * (static_cast<double>(v) - mean) / dim;
                    const double scale = 1 / std::sqrt(variance + static_cast<double>(eps));
                    for (uint32_t k = 0; k < dim; k++)
                        normed[size_t{row} * dim + k] =
                            gain ? static_cast<float>((static_cast<double>(x[k]) - mean) * scale) * g[k] + s[k] : x[k];
                }
                for (uint32_t column = 0; column < width; column++) {
                    w->read(uint64_t{column} * dim, 1, dim, weight.data());
                    for (uint32_t row = 0; row < n; row++) {
                        double sum = static_cast<double>(bias[column]);
                        for (uint32_t k = 0; k < dim; k++)
                            sum += static_cast<double>(normed[size_t{row} * dim + k]) * static_cast<double>(weight[k]);
                        out[size_t{row} * width + column] = static_cast<float>(sum);
                    }
                }
            };
        }
}

// Rows of sin in the first half and cos in the second (Marian, Pegasus), where the file does not hold them.
inline void add_sinusoids(Reader& r, const Config& c, uint32_t stack, const std::string& name)
{
    const uint32_t dim = c.dim, rows = c.max_seq_len, half = (dim + 1) / 2;
    if (r.use({r.prefix + name}, {rows, dim}, true)) return;   // the table's row gives it
    TensorSource& t = r.push(stack, 0, static_cast<uint8_t>(Role::position_embedding), rows, dim);
    t.read = [dim, half](uint32_t, uint32_t first, uint32_t n, float* out) {
        for (uint32_t p = first; p < first + n; p++)
            for (uint32_t i = 0; i < dim; i++) {
                const uint32_t pair = i < half ? i : i - half;
                const double angle = p / std::pow(10000.0, 2.0 * pair / dim);
                *out++ = static_cast<float>(i < half ? std::sin(angle) : std::cos(angle));
            }
    };
}

// The two stacks of BART's kind.
inline void two_stacks(Reader& r, bool pre_norm, bool embedding_norm)
{
    r.fill(r.main, "decoder_");
    r.fill(r.encoder, "encoder_");
    r.encoder.flags = 0;
    r.main.flags |= transformer::flag_cross;
    r.main.norm_eps = r.encoder.norm_eps = 1e-5f;
    r.main.decoder_start = r.given("decoder_start_token_id") ? r.u32("decoder_start_token_id") + 1 : 0;
    if (r.truth("scale_embedding"))
        r.main.embedding_scale = r.encoder.embedding_scale =
            static_cast<float>(std::sqrt(static_cast<double>(r.main.dim)));
    r.conditions = {{"pre_norm", pre_norm}, {"embedding_norm", embedding_norm}, {"shared_embedding", true}};
}
inline void lone_encoder(Reader& r)
{
    r.fill(r.main);
    r.refuse_if(r.truth("is_decoder") && r.head->suffix != std::string("LMHeadModel"), "is_decoder");
    if (!r.truth("is_decoder")) r.main.flags = 0;
    r.main.n_types = r.u32("type_vocab_size", 0);
    r.conditions["token_types"] = r.main.n_types != 0;
}
// BERT and RoBERTa: learned positions from row `offset` on, or relative keys.
inline void bert_positions(Reader& r, uint32_t offset, const std::string& attention)
{
    const std::string kind = r.word("position_embedding_type", "absolute");
    r.conditions["absolute_positions"] = kind == "absolute";
    if (kind == "relative_key" || kind == "relative_key_query")
        add_relative_keys(r, attention, kind == "relative_key_query");
    else if (kind != "absolute")
        r.refuse("position_embedding_type");
    if (offset >= r.main.max_seq_len) r.refuse("max_position_embeddings", "leaves no positions");
    if (kind != "absolute") return;
    r.position_offset = offset;
    r.main.max_seq_len -= offset;
}
// Where use_sliding_window is false, no layer may ask for a window.
inline void qwen_windows(Reader& r, const std::function<bool(uint32_t)>& otherwise)
{
    if (r.truth("use_sliding_window") && r.u32("sliding_window", 0)) return r.set_local(otherwise);
    const Json* types = r.given("layer_types");
    for (size_t i = 0; types && i < types->items.size(); i++)
        if (types->items[i].string != "full_attention")
            r.refuse("layer_types", "needs use_sliding_window and sliding_window");
}
inline void granite_scales(Reader& r)
{
    rotary_decoder(r);
    r.main.embedding_scale = r.f32("embedding_multiplier", 1);
    r.main.residual_scale = r.f32("residual_multiplier", 1);
    r.main.attn_scale = r.f32("attention_multiplier", 1);
    r.main.logit_scale = static_cast<float>(1 / r.real("logits_scaling", 1));
}
inline void gemma_scales(Reader& r)
{
    r.fill(r.main);
    r.norm_plus = 1;
    r.main.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(r.main.dim)));
}
inline void gemma_attention(Reader& r)
{
    r.main.activation = r.activation("hidden_activation");
    const double scalar = r.real("query_pre_attn_scalar");
    if (!(scalar > 0)) r.refuse("query_pre_attn_scalar");
    r.main.attn_scale = static_cast<float>(1 / std::sqrt(scalar));
    r.main.logit_softcap = r.f32("final_logit_softcapping", 0);
}
inline void sparse_layers(Reader& r, const std::string& experts)
{
    const uint32_t step = std::max(1u, r.u32("decoder_sparse_step", 1));
    std::set<uint32_t> dense;
    if (r.given("mlp_only_layers"))
        for (const double i : r.numbers(r.get("mlp_only_layers"), "mlp_only_layers"))
            dense.insert(static_cast<uint32_t>(std::max(0.0, i)));
    r.set_experts(r.u32(experts), r.u32("num_experts_per_tok"), r.u32("moe_intermediate_size"),
                  [&](uint32_t i) { return !dense.count(i) && (i + 1) % step == 0; });
    if (r.truth("norm_topk_prob")) r.main.flags |= transformer::flag_renormalise;
}
// MLA in its absorbed form: one cached row of the rotated part and the latent.
inline void deepseek(Reader& r)
{
    Config& c = r.main;
    r.fill(c);
    const uint32_t rope_dim = r.u32("qk_rope_head_dim"), nope = r.u32("qk_nope_head_dim");
    for (const char* key : {"q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"})
        r.at_most(key, r.u32(key, 0), 1u << 16);
    c.q_lora_rank = r.u32("q_lora_rank", 0);
    c.kv_lora_rank = r.u32("kv_lora_rank");
    c.nope_head_dim = nope;
    c.mla_v_head_dim = r.u32("v_head_dim");
    if (!c.kv_lora_rank || !nope || !c.mla_v_head_dim)
        throw Error(r.where + ": kv_lora_rank, qk_nope_head_dim and v_head_dim must not be 0");
    c.head_dim = rope_dim + c.kv_lora_rank;
    c.v_head_dim = c.kv_lora_rank;
    c.n_kv_heads = 1;
    c.qk_norm_eps = 1e-6f;                                     // its latent norms keep the class's default
    const RopeSettings rope = r.rope();
    r.set_rope_dim(c, rope_dim, rope);
    const double mscale = rope.type == "default" || rope.mscale_all_dim == 0 ? 1
        : yarn_mscale(rope.factor, rope.mscale_all_dim);
    c.attn_scale = static_cast<float>(mscale * mscale / std::sqrt(static_cast<double>(rope_dim + nope)));
    r.interleaved = r.truth("rope_interleave", true);
    r.conditions["q_lora"] = c.q_lora_rank != 0;

    const uint32_t first = r.u32("first_k_dense_replace", 0), step = std::max(1u, r.u32("moe_layer_freq", 1));
    r.set_experts(r.u32("n_routed_experts"), r.u32("num_experts_per_tok"), r.u32("moe_intermediate_size"),
                  [&](uint32_t i) { return i >= first && i % step == 0; });
    const uint64_t shared = mul_sat(r.u32("n_shared_experts", 0), c.hidden_dim);
    r.at_most("width of the shared experts", shared, 1u << 24);
    c.shared_hidden_dim = static_cast<uint32_t>(shared);
    c.routed_scale = r.f32("routed_scaling_factor", 1);
}
inline void set_groups(Reader& r)
{
    Config& c = r.main;
    c.n_groups = r.u32("n_group", 0);
    c.n_groups_active = r.u32("topk_group", 0);
    if (!c.n_groups || !c.n_groups_active || c.n_groups_active > c.n_groups || c.n_experts % c.n_groups)
        r.refuse("n_group", "does not divide the experts");
}

inline Rows deepseek_rows()
{
    return ends_rows() + pre_norm_rows() +
                Rows{{"layers.#.self_attn.q_proj", Role::wq, "", "!q_lora"},
                     {"layers.#.self_attn.q_a_proj", Role::wq_a, "attention_bias", "q_lora"},
                     {"layers.#.self_attn.q_a_layernorm", Role::q_a_norm, "", "q_lora"},
                     {"layers.#.self_attn.q_b_proj", Role::wq, "", "q_lora"},
                     {"layers.#.self_attn.kv_a_proj_with_mqa", Role::wkv_a, "attention_bias"},
                     {"layers.#.self_attn.kv_a_layernorm", Role::kv_a_norm},
                     {"layers.#.self_attn.kv_b_proj", Role::wk_b, "", "", map_up},
                     {"layers.#.self_attn.kv_b_proj", Role::wv_b, "", "", map_up},
                     {"layers.#.self_attn.o_proj", Role::wo, "attention_bias"}} +
                gated_rows("layers.#.mlp.", "mlp_bias", "!experts")
                    + expert_rows("layers.#.mlp.", "gate", "gate_proj", "up_proj", "down_proj", "mlp_bias") +
                shared_expert_rows("layers.#.mlp.shared_experts.", "mlp_bias");
}
// Keys of our own kinds. TorchTransformer (torch.nn.Transformer between embeddings scaled by sqrt(d) with sinusoids):
// vocab_size d_model nhead num_encoder_layers num_decoder_layers dim_feedforward activation norm_first layer_norm_eps.
// TorchLayer (one layer of it, on rows): layer = encoder or decoder, and the same sizes. MiniTransformer (pre-norm
// blocks on rows): d_model num_heads d_ff num_layers layer_norm_eps causal. Blocks (a causal decoder): vocab_size
// d_model n_layers n_heads n_kv_heads d_ff norm = rms or layer, eps, block = pre, post, sandwich or parallel, ffn =
// swiglu, geglu, relu or gelu, rope = half or interleaved, rope_theta, bias. ModernEncoderDecoder: vocab_size d_model
// n_layers n_heads n_kv_heads d_ff eps rope_theta.
inline void torch_transformer(Reader& r)
{
    r.fill(r.main);
    r.encoder = r.main;
    r.set_layers(r.main, r.u32("num_decoder_layers"));
    r.set_layers(r.encoder, r.u32("num_encoder_layers"));
    r.main.flags = transformer::flag_causal | transformer::flag_cross | transformer::flag_sinusoidal;
    r.encoder.flags = transformer::flag_sinusoidal;
    r.main.embedding_scale = r.encoder.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(r.main.dim)));
    r.main.decoder_start = r.given("decoder_start_token_id") ? r.u32("decoder_start_token_id") + 1 : 0;
    r.tied = false;
}
inline void t5(Reader& r)
{
    r.fill(r.main);
    const std::vector<std::string> feed_forward = split(r.word("feed_forward_proj"), '-');
    const bool gated = feed_forward[0] == "gated";
    if (feed_forward.size() > (gated ? 2u : 1u)) r.refuse("feed_forward_proj");
    r.conditions["gated"] = gated;
    r.main.activation = r.activation(feed_forward.back() == "gelu" && gated ? "=gelu_new" : "=" + feed_forward.back());
    r.main.attn_scale = 1;
    r.encoder = r.main;
    r.encoder.flags = 0;
    r.set_layers(r.main, r.u32("num_decoder_layers", r.encoder.n_layers));
    r.main.flags |= transformer::flag_cross;
    r.main.decoder_start = r.given("decoder_start_token_id") ? r.u32("decoder_start_token_id") + 1 : 0;
    // Version 5 says in scale_decoder_outputs what version 4 says in tie_word_embeddings, and of mT5 nothing.
    if (r.given("scale_decoder_outputs")) r.tied = r.truth("scale_decoder_outputs");
    if (r.word("model_type") == "mt5") r.tied = r.files && !r.files->find("lm_head.weight");
    if (r.tied) r.main.logit_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(r.main.dim)));
    const bool lone = r.head->suffix == std::string("EncoderModel");
    if (lone) {
        r.main = r.encoder;
        r.set_layers(r.main, r.main.n_layers);
        r.encoder = Config();
        r.main_rows = r.family->encoder;
    }
    const bool each_layer = r.word("model_type") == "umt5";
    for (const bool decoder : {false, true}) {
        if (lone && decoder) continue;
        Config& c = decoder || lone ? r.main : r.encoder;
        add_relative_bias(r, c, decoder || lone ? 0 : 1, r.u32("relative_attention_num_buckets"),
            r.u32("relative_attention_max_distance"), [&](uint32_t i) {
            return std::string(decoder ? "decoder" : "encoder") + ".block." + std::to_string(each_layer ? i : 0) +
                   ".layer.0.SelfAttention.relative_attention_bias.weight";
        });
    }
}
inline void whisper(Reader& r)
{
    two_stacks(r, true, false);
    r.main.embedding_scale = r.encoder.embedding_scale = 1;    // transformers' Whisper does not use scale_embedding
    r.conditions["shared_embedding"] = false;
    r.main.max_seq_len = r.u32("max_target_positions");
    r.encoder.max_seq_len = r.u32("max_source_positions");
    r.encoder.vocab_size = 0;
    r.encoder.n_features = r.u32("num_mel_bins");
    if (!r.encoder.n_features || r.encoder.max_seq_len > 1000000)
        throw Error(r.where + ": num_mel_bins and max_source_positions are not usable");
    r.encoder.n_frames = 2 * r.encoder.max_seq_len;
}
inline Rows whisper_encoder_rows()
{
    Rows rows = bart_rows("encoder", "");
    rows.erase(rows.begin(), rows.begin() + 2);                // it embeds no tokens
    return Rows{{"encoder.conv1", Role::conv1, "1", "", map_conv}, {"encoder.conv2", Role::conv2, "1", "", map_conv}}
        + rows;
}
inline void bart(Reader& r, bool pre_norm, bool embedding_norm, bool sinusoids)
{
    two_stacks(r, pre_norm, embedding_norm);
    r.position_offset = sinusoids ? 0 : 2;
    r.conditions["sinusoids"] = sinusoids;
    if (sinusoids) {
        add_sinusoids(r, r.main, 0, "decoder.embed_positions.weight");
        add_sinusoids(r, r.encoder, 1, "encoder.embed_positions.weight");
    }
    for (const char* key : {"normalize_before", "add_final_layer_norm"}) // of old configurations
        if (r.given(key) && r.truth(key) != pre_norm) r.refuse(key);
    for (const char* key : {"static_position_embeddings", "extra_pos_embeddings_off"})
        r.refuse_if(r.truth(key) && !sinusoids, key);
}
inline void blocks(Reader& r)
{
    const std::string norm = r.word("norm"), block = r.word("block"), ffn = r.word("ffn"), order = r.word("rope");
    r.main.norm = norm == "layer" ? transformer::NormKind::layer : transformer::NormKind::rms;
    r.refuse_if(norm != "rms" && norm != "layer", "norm");
    r.refuse_if(block != "pre" && block != "post" && block != "sandwich" && block != "parallel", "block");
    r.refuse_if(ffn != "swiglu" && ffn != "geglu" && ffn != "relu" && ffn != "gelu", "ffn");
    r.refuse_if(order != "half" && order != "interleaved", "rope");
    rotary_decoder(r);
    r.main.activation = r.activation(ffn == "swiglu" ? "=silu" : ffn == "relu" ? "=relu" : "=gelu");
    r.interleaved = order == "interleaved";
    parallel(r, block == "parallel");
    r.conditions["gated"] = ffn == "swiglu" || ffn == "geglu";
    r.conditions["layer_norm"] = norm == "layer";
    r.conditions["post"] = block == "post";
    r.conditions["pre"] = block == "pre" || block == "sandwich";
    r.conditions["sandwich"] = block == "sandwich";
    r.tied = true;
}

// ---- The families ---------------------------------------------------------------------------------------------------

inline const std::vector<Family>& families()
{
    using transformer::NormKind;
    constexpr NormKind rms = NormKind::rms, layer = NormKind::layer;
    const std::vector<Head> whisper_heads = {{"ForConditionalGeneration", {{"proj_out", Role::lm_head}}, Head::tokens},
        {"Model", {}, Head::none}};
    const auto bart_heads = [](const char* suffix) {
        return std::vector<Head>{{suffix, {{"lm_head", Role::lm_head},
            {"final_logits_bias", Role::lm_head, "", "", map_exact | map_is_bias | map_optional | map_buffer}},
            Head::tokens},
                                 {"Model", {}, Head::none}};
    };
    static const std::vector<Family> all = {
        // Llama and what has its names.
        {"llama", "Llama", "model.", rms,
         R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":2048,"rms_norm_eps":1e-6,
             "bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         llama_rows(), {}, decoder_heads(), rotary_decoder},
        {"mistral", "Mistral", "model.", rms,
         R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
             "num_attention_heads":32,"num_key_value_heads":8,"hidden_act":"silu","max_position_embeddings":131072,
             "rms_norm_eps":1e-6,"sliding_window":4096,"bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         llama_rows("", "", ""), {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.set_window();
         }},
        {"qwen2", "Qwen2", "model.", rms,
         R"({"vocab_size":151936,"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,
             "num_attention_heads":32,"num_key_value_heads":32,"hidden_act":"silu","max_position_embeddings":32768,
             "rms_norm_eps":1e-6,"sliding_window":4096,"max_window_layers":28,"tie_word_embeddings":false})",
         llama_rows("1", "", ""), {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             qwen_windows(r, [&](uint32_t i) { return i >= r.u32("max_window_layers"); });
         }},
        {"qwen3", "Qwen3", "model.", rms,
         R"({"vocab_size":151936,"hidden_size":4096,"intermediate_size":22016,"num_hidden_layers":32,
             "num_attention_heads":32,"num_key_value_heads":32,"head_dim":128,"hidden_act":"silu",
             "max_position_embeddings":32768,"rms_norm_eps":1e-6,"sliding_window":4096,"max_window_layers":28,
             "tie_word_embeddings":false})",
         llama_rows("attention_bias", "attention_bias", "") + qk_norm_rows(), {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             qwen_windows(r, [&](uint32_t i) { return i >= r.u32("max_window_layers"); });
         }},
        {"phi3", "Phi3", "model.", rms,
         R"({"vocab_size":32064,"hidden_size":3072,"intermediate_size":8192,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":4096,
             "original_max_position_embeddings":4096,"rms_norm_eps":1e-5,"bos_token_id":1,"eos_token_id":32000,
             "tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + fused_rows("layers.#.self_attn.qkv_proj", "")
             + Rows{{"layers.#.self_attn.o_proj", Role::wo}} +
             fused_gated_rows("layers.#.mlp."),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.set_window();
         }},
        {"granite", "Granite", "model.", rms,
         R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":2048,"rms_norm_eps":1e-6,
             "bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         llama_rows(), {}, decoder_heads(), granite_scales},
        {"smollm3", "SmolLM3", "model.", rms,
         R"({"vocab_size":128256,"hidden_size":2048,"intermediate_size":11008,"num_hidden_layers":36,
             "num_attention_heads":16,"num_key_value_heads":4,"hidden_act":"silu","max_position_embeddings":32768,
             "rms_norm_eps":1e-6,"rope_theta":2000000,"no_rope_layer_interval":4,"bos_token_id":128000,
             "eos_token_id":128001})",
         llama_rows(), {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             const uint32_t interval = std::max(1u, r.u32("no_rope_layer_interval"));
             std::vector<double> with_rope;
             for (uint32_t i = 0; i < r.main.n_layers; i++) with_rope.push_back((i + 1) % interval != 0);
             if (r.given("no_rope_layers")) with_rope = r.layer_numbers("no_rope_layers");
             qwen_windows(r, [&](uint32_t i) { return with_rope[i] == 0; });
             for (uint32_t i = 0; i < r.main.n_layers; i++)
                 if (with_rope[i] == 0) r.flags[i] = static_cast<uint8_t>(r.flags[i] | transformer::layer_no_rope);
         }},
        {"stablelm", "StableLm", "model.", layer,
         R"({"vocab_size":50304,"hidden_size":2560,"intermediate_size":6912,"num_hidden_layers":32,
             "num_attention_heads":32,"num_key_value_heads":32,"hidden_act":"silu","max_position_embeddings":4096,
             "layer_norm_eps":1e-5,"partial_rotary_factor":0.25,"bos_token_id":0,"eos_token_id":0,
             "tie_word_embeddings":false})",
         ends_rows("embed_tokens", "norm", "1") +
             Rows{{"layers.#.input_layernorm", Role::attn_norm_pre, "1"},
                  {"layers.#.input_layernorm", Role::ffn_norm_pre, "1", "use_parallel_residual"},
                  {"layers.#.post_attention_layernorm", Role::ffn_norm_pre, "1", "!use_parallel_residual"}} +
             llama_attention("use_qkv_bias", "") + qk_norm_rows("qk_layernorm", "", "q_layernorm.norms.*",
                 "k_layernorm.norms.*") +
             gated_rows("layers.#.mlp.", ""),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             parallel(r, r.truth("use_parallel_residual"));
             r.main.flags |= transformer::flag_qk_norm_layer;
             r.qk_norm = r.head_norm;
         }},
        {"starcoder2", "Starcoder2", "model.", layer,
         R"({"vocab_size":49152,"hidden_size":3072,"intermediate_size":12288,"num_hidden_layers":30,
             "num_attention_heads":24,"num_key_value_heads":2,"hidden_act":"gelu_pytorch_tanh",
             "max_position_embeddings":4096,"norm_epsilon":1e-5,"use_bias":true,"bos_token_id":50256,
             "eos_token_id":50256})",
         ends_rows("embed_tokens", "norm", "1") + pre_norm_rows("1") + llama_attention("use_bias", "use_bias") +
             plain_rows("layers.#.mlp.c_fc", "layers.#.mlp.c_proj", "use_bias"),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.set_window();
         }},
        {"nemotron", "Nemotron", "model.", layer,
         R"({"vocab_size":256000,"hidden_size":6144,"intermediate_size":24576,"num_hidden_layers":32,
             "num_attention_heads":48,"hidden_act":"relu2","max_position_embeddings":4096,"norm_eps":1e-5,
             "partial_rotary_factor":0.5,"bos_token_id":2,"eos_token_id":3,"tie_word_embeddings":false})",
         ends_rows("embed_tokens", "norm", "1") + pre_norm_rows("1") + llama_attention()
             + plain_rows("layers.#.mlp.up_proj", "layers.#.mlp.down_proj", "mlp_bias"),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.norm_plus = 1;
             const RopeSettings rope = r.rope();
             if (rope.type != "default") r.refuse("rope_scaling");
         }},
        {"cohere cohere2", "Cohere Cohere2", "model.", layer,
         R"({"vocab_size":256000,"hidden_size":8192,"intermediate_size":22528,"num_hidden_layers":40,
             "num_attention_heads":64,"hidden_act":"silu","max_position_embeddings":8192,"layer_norm_eps":1e-5,
             "logit_scale":0.0625,"sliding_window":4096,"bos_token_id":5,"eos_token_id":255001})",
         ends_rows() + parallel_norm_rows("layers.#.input_layernorm", "") + llama_attention()
             + qk_norm_rows("use_qk_norm") + gated_rows("layers.#.mlp.", ""),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             parallel(r);
             r.interleaved = true;
             r.qk_norm = r.head_norm;
             r.main.flags |= transformer::flag_qk_norm_layer;
             r.main.logit_scale = r.f32("logit_scale", 0.0625);
             if (r.word("model_type") == "cohere") return;
             r.conditions["use_qk_norm"] = false;
             const uint32_t pattern = std::max(1u, r.u32("sliding_window_pattern _sliding_window_pattern", 4));
             r.set_local([&](uint32_t i) { return (i + 1) % pattern != 0; });
             for (uint8_t& f : r.flags)                         // full attention goes without rotation
                 if (!(f & transformer::layer_local)) f = static_cast<uint8_t>(f | transformer::layer_no_rope);
         }},
        {"glm", "Glm", "model.", rms,
         R"({"vocab_size":151552,"hidden_size":4096,"intermediate_size":13696,"num_hidden_layers":40,
             "num_attention_heads":32,"num_key_value_heads":2,"partial_rotary_factor":0.5,"head_dim":128,
             "hidden_act":"silu","max_position_embeddings":131072,"rms_norm_eps":1.5625e-7,"attention_bias":true,
             "tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention("attention_bias", "") + fused_gated_rows("layers.#.mlp."), {},
             decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.interleaved = true;
         }},
        {"glm4", "Glm4", "model.", rms,
         R"({"vocab_size":151552,"hidden_size":4096,"intermediate_size":13696,"num_hidden_layers":40,
             "num_attention_heads":32,"num_key_value_heads":2,"partial_rotary_factor":0.5,"head_dim":128,
             "hidden_act":"silu","max_position_embeddings":131072,"rms_norm_eps":1.5625e-7,"attention_bias":true,
             "tie_word_embeddings":false})",
         ends_rows() +
             Rows{{"layers.#.input_layernorm", Role::attn_norm_pre},
                 {"layers.#.post_self_attn_layernorm", Role::attn_norm_post},
                  {"layers.#.post_attention_layernorm", Role::ffn_norm_pre},
                  {"layers.#.post_mlp_layernorm", Role::ffn_norm_post}} +
             llama_attention("attention_bias", "") + fused_gated_rows("layers.#.mlp."),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.interleaved = true;
         }},
        {"chameleon", "Chameleon", "model.", rms,
         R"({"vocab_size":65536,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"num_key_value_heads":32,"hidden_act":"silu","max_position_embeddings":4096,
             "rms_norm_eps":1e-5,"bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         ends_rows() +
             Rows{{"layers.#.input_layernorm", Role::attn_norm_pre, "", "!swin_norm"},
                 {"layers.#.input_layernorm", Role::attn_norm_post, "", "swin_norm"},
                  {"layers.#.post_attention_layernorm", Role::ffn_norm_pre, "", "!swin_norm"},
                  {"layers.#.post_attention_layernorm", Role::ffn_norm_post, "", "swin_norm"}} +
             llama_attention() + qk_norm_rows("", "1") + gated_rows("layers.#.mlp.", "mlp_bias"),
         {}, decoder_heads("lm_head", "", "ForConditionalGeneration"),
         [](Reader& r) {
             rotary_decoder(r);
             r.qk_norm = r.head_norm;
             r.main.flags |= transformer::flag_qk_norm_layer;
             r.main.qk_norm_eps = 1e-5f;
         },
         ".vqmodel."},
        {"olmo", "Olmo", "model.", layer,
         R"({"vocab_size":50304,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":2048,"eos_token_id":50279,
             "tie_word_embeddings":false})",
         llama_rows("attention_bias", "attention_bias", ""), {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.ones_for_norms = true;
             r.main.norm_eps = 1e-5f;
             r.main.qkv_clip = r.f32("clip_qkv", 0);
         }},
        {"olmo2 olmo3", "Olmo2 Olmo3", "model.", rms,
         R"({"vocab_size":50304,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":2048,"rms_norm_eps":1e-5,
             "sliding_window":4096,"eos_token_id":50279,"tie_word_embeddings":false})",
         ends_rows() +
             Rows{{"layers.#.post_attention_layernorm", Role::attn_norm_post},
                 {"layers.#.post_feedforward_layernorm", Role::ffn_norm_post}} +
             llama_attention() + qk_norm_rows() + gated_rows("layers.#.mlp.", ""),
         {}, decoder_heads(),
         [](Reader& r) {
             r.fill(r.main);
             r.qk_norm = r.full_norm;
             const RopeSettings whole = r.rope();
             if (r.word("model_type") == "olmo2") return r.set_rope(r.main, whole);
             const RopeSettings local = r.rope("sliding_attention", "rope_theta", false); // scaled in full layers only
             const bool same = whole.type == "default" && local.type == "default" && whole.theta == local.theta;
             r.set_rope(r.main, whole, 0, same ? nullptr : &local);
             r.set_local([](uint32_t i) { return (i + 1) % 4 != 0; });
             for (uint8_t& f : r.flags)
                 if (!same && (f & transformer::layer_local))
                     f = static_cast<uint8_t>(f | transformer::layer_rope_local);
         }},
        {"gemma", "Gemma", "model.", rms,
         R"({"vocab_size":256000,"hidden_size":3072,"intermediate_size":24576,"num_hidden_layers":28,
             "num_attention_heads":16,"num_key_value_heads":16,"head_dim":256,"hidden_act":"gelu_pytorch_tanh",
             "max_position_embeddings":8192,"rms_norm_eps":1e-6,"bos_token_id":2,"eos_token_id":1})",
         llama_rows("attention_bias", "attention_bias", ""), {}, decoder_heads(),
         [](Reader& r) {
             gemma_scales(r);
             r.set_rope(r.main, r.rope());
             // so the first configurations said it
             if (r.word("hidden_act") == "gelu") r.main.activation = Activation::gelu_tanh;
         }},
        {"gemma2", "Gemma2", "model.", rms,
         R"({"vocab_size":256000,"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,
             "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"hidden_activation":"gelu_pytorch_tanh",
             "max_position_embeddings":8192,"rms_norm_eps":1e-6,"query_pre_attn_scalar":256,"sliding_window":4096,
             "final_logit_softcapping":30.0,"attn_logit_softcapping":50.0,"bos_token_id":2,"eos_token_id":1})",
         ends_rows() + sandwich_norm_rows() + llama_attention() + gated_rows("layers.#.mlp.", ""), {}, decoder_heads(),
         [](Reader& r) {
             gemma_scales(r);
             r.set_rope(r.main, r.rope());
             r.refuse_if(r.truth("use_bidirectional_attention"), "use_bidirectional_attention");
             gemma_attention(r);
             r.main.attn_softcap = r.f32("attn_logit_softcapping", 0);
             r.set_local([](uint32_t i) { return (i + 1) % 2 != 0; });
         }},
        {"gemma3_text gemma3", "Gemma3 Gemma3Text", "model.", rms,
         R"({"vocab_size":262208,"hidden_size":2304,"intermediate_size":9216,"num_hidden_layers":26,
             "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"hidden_activation":"gelu_pytorch_tanh",
             "max_position_embeddings":131072,"rms_norm_eps":1e-6,"query_pre_attn_scalar":256,"sliding_window":4096,
             "rope_theta":1000000,"rope_local_base_freq":10000,"bos_token_id":2,"eos_token_id":1})",
         ends_rows() + sandwich_norm_rows() + llama_attention() + qk_norm_rows() + gated_rows("layers.#.mlp.", ""), {},
         decoder_heads() + std::vector<Head>{{"ForConditionalGeneration", {{"lm_head", Role::lm_head}}, Head::tokens}},
         [](Reader& r) {
             gemma_scales(r);
             const RopeSettings whole = r.rope(), local = r.rope("sliding_attention", "rope_local_base_freq", false);
             const bool same = whole.type == "default" && local.type == "default" && whole.theta == local.theta;
             r.set_rope(r.main, whole, 0, same ? nullptr : &local);
             gemma_attention(r);
             r.refuse_if(r.given("attn_logit_softcapping") != nullptr, "attn_logit_softcapping");
             const uint32_t pattern = std::max(1u, r.u32("sliding_window_pattern _sliding_window_pattern", 6));
             r.set_local([&](uint32_t i) { return (i + 1) % pattern != 0; });
             for (uint8_t& f : r.flags)
                 if (!same && (f & transformer::layer_local))
                     f = static_cast<uint8_t>(f | transformer::layer_rope_local);
             if (!r.truth("use_bidirectional_attention")) return;
             r.main.flags &= ~static_cast<uint32_t>(transformer::flag_causal);
             r.main.window = r.main.window / 2 + 1;            // to either side, itself included
             r.main.window_ahead = r.main.window - 1;
         },
         "vision_tower. multi_modal_projector."},

        // Experts.
        {"mixtral", "Mixtral", "model.", rms,
         R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
             "num_attention_heads":32,"num_key_value_heads":8,"hidden_act":"silu","max_position_embeddings":131072,
             "rms_norm_eps":1e-5,"rope_theta":1000000,"num_experts_per_tok":2,"num_local_experts":8,"bos_token_id":1,
             "eos_token_id":2,"tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention("", "")
             + expert_rows("layers.#.block_sparse_moe.", "gate", "w1", "w3", "w2"), {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.set_window();
             r.set_experts(r.u32("num_local_experts"), r.u32("num_experts_per_tok"), r.main.hidden_dim,
                 [](uint32_t) { return true; });
             r.main.flags |= transformer::flag_renormalise;
         }},
        {"qwen2_moe", "Qwen2Moe", "model.", rms,
         R"({"vocab_size":151936,"hidden_size":2048,"intermediate_size":5632,"num_hidden_layers":24,
             "num_attention_heads":16,"num_key_value_heads":16,"hidden_act":"silu","max_position_embeddings":32768,
             "rms_norm_eps":1e-6,"sliding_window":4096,"moe_intermediate_size":1408,
             "shared_expert_intermediate_size":5632,"num_experts_per_tok":4,"num_experts":60,"qkv_bias":true,
             "tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention("qkv_bias", "") + gated_rows("layers.#.mlp.", "", "!experts") +
             expert_rows("layers.#.mlp.", "gate", "gate_proj", "up_proj", "down_proj")
                 + shared_expert_rows("layers.#.mlp.shared_expert.") +
             Rows{{"layers.#.mlp.shared_expert_gate", Role::shared_router, "", "shared_expert"}},
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             qwen_windows(r, [](uint32_t) { return true; });
             sparse_layers(r, "num_experts num_local_experts");
             r.main.shared_hidden_dim = r.u32("shared_expert_intermediate_size");
         }},
        {"qwen3_moe", "Qwen3Moe", "model.", rms,
         R"({"vocab_size":151936,"hidden_size":2048,"intermediate_size":6144,"num_hidden_layers":24,
             "num_attention_heads":32,"num_key_value_heads":4,"hidden_act":"silu","max_position_embeddings":32768,
             "rms_norm_eps":1e-6,"sliding_window":4096,"moe_intermediate_size":768,"num_experts_per_tok":8,
             "num_experts":128,"tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention() + qk_norm_rows()
             + gated_rows("layers.#.mlp.", "", "!experts") +
             expert_rows("layers.#.mlp.", "gate", "gate_proj", "up_proj", "down_proj"),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             qwen_windows(r, [](uint32_t) { return true; });
             sparse_layers(r, "num_experts num_local_experts");
         }},
        {"granitemoe", "GraniteMoe", "model.", rms,
         R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":2048,"rms_norm_eps":1e-6,
             "num_local_experts":8,"num_experts_per_tok":2,"bos_token_id":1,"eos_token_id":2,
             "tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention() +
             Rows{{"layers.#.block_sparse_moe.router.layer", Role::router},
                  {"layers.#.block_sparse_moe.input_linear", Role::gate, "", "", map_fused | map_stacked},
                  {"layers.#.block_sparse_moe.input_linear", Role::up, "", "", map_fused | map_stacked},
                  {"layers.#.block_sparse_moe.output_linear", Role::down, "", "", map_stacked}},
         {}, decoder_heads(),
         [](Reader& r) {
             granite_scales(r);
             r.refuse_if(r.word("position_embedding_type", "rope") != "rope", "position_embedding_type");
             r.set_experts(r.u32("num_local_experts"), r.u32("num_experts_per_tok"), r.main.hidden_dim,
                 [](uint32_t) { return true; });
             r.main.flags |= transformer::flag_renormalise;
         }},
        {"olmoe", "Olmoe", "model.", rms,
         R"({"vocab_size":50304,"hidden_size":2048,"intermediate_size":2048,"num_hidden_layers":16,
             "num_attention_heads":16,"hidden_act":"silu","max_position_embeddings":4096,"rms_norm_eps":1e-5,
             "num_experts_per_tok":8,"num_experts":64,"eos_token_id":50279,"tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention() + qk_norm_rows()
             + expert_rows("layers.#.mlp.", "gate", "gate_proj", "up_proj", "down_proj"),
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.qk_norm = r.full_norm;
             r.main.qkv_clip = r.f32("clip_qkv", 0);
             r.set_experts(r.u32("num_experts num_local_experts"), r.u32("num_experts_per_tok"), r.main.hidden_dim,
                 [](uint32_t) { return true; });
             if (r.truth("norm_topk_prob")) r.main.flags |= transformer::flag_renormalise;
         }},
        {"deepseek_v2", "DeepseekV2", "model.", rms,
         R"({"vocab_size":32000,"hidden_size":4096,"intermediate_size":11008,"num_hidden_layers":32,
             "num_attention_heads":32,"hidden_act":"silu","max_position_embeddings":2048,"rms_norm_eps":1e-6,
             "kv_lora_rank":512,"q_lora_rank":1536,"n_routed_experts":64,"n_shared_experts":2,"qk_nope_head_dim":128,
             "qk_rope_head_dim":64,"topk_method":"greedy","v_head_dim":128,"moe_intermediate_size":1407,
             "bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         deepseek_rows(), {}, decoder_heads(),
         [](Reader& r) {
             deepseek(r);
             r.refuse_if(r.truth("norm_topk_prob"), "norm_topk_prob");
             r.refuse_if(r.word("scoring_func", "softmax") != "softmax", "scoring_func");
             const std::string method = r.word("topk_method");
             if (method == "group_limited_greedy")
                 set_groups(r);
             else if (method != "greedy")
                 r.refuse("topk_method");
         }},
        {"deepseek_v3", "DeepseekV3", "model.", rms,
         R"({"vocab_size":129280,"hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,
             "num_hidden_layers":61,"num_attention_heads":128,"hidden_act":"silu","max_position_embeddings":4096,
             "rms_norm_eps":1e-6,"n_shared_experts":1,"n_routed_experts":256,"routed_scaling_factor":2.5,
             "kv_lora_rank":512,"q_lora_rank":1536,"qk_rope_head_dim":64,"v_head_dim":128,"qk_nope_head_dim":128,
             "n_group":8,"topk_group":4,"num_experts_per_tok":8,"first_k_dense_replace":3,"norm_topk_prob":true,
             "rope_interleave":true,"bos_token_id":0,"eos_token_id":1,"tie_word_embeddings":false})",
         deepseek_rows() + Rows{{"layers.#.mlp.gate.e_score_correction_bias", Role::router_bias, "", "experts",
             map_exact | map_buffer}}, {}, decoder_heads(),
         [](Reader& r) {
             deepseek(r);
             set_groups(r);
             if (r.main.n_experts / r.main.n_groups < 2) r.refuse("n_group", "leaves groups of one expert");
             r.refuse_if(r.word("scoring_func", "sigmoid") != "sigmoid", "scoring_func");
             r.refuse_if(r.word("topk_method", "noaux_tc") != "noaux_tc", "topk_method");
             r.main.router = transformer::Router::sigmoid;
             r.main.flags |= transformer::flag_group_top2;
             if (r.truth("norm_topk_prob")) r.main.flags |= transformer::flag_renormalise;
             // Published checkpoints end with layers that guess further tokens; nobody asks for them here.
             for (uint32_t i = 0; i < std::min(64u, r.u32("num_nextn_predict_layers num_mtp_layers", 0)); i++)
                 r.ignored.push_back(r.prefix + "layers." + std::to_string(r.main.n_layers + i) + ".");
         }},
        {"gpt_oss", "GptOss", "model.", rms,
         R"({"vocab_size":201088,"hidden_size":2880,"intermediate_size":2880,"num_hidden_layers":36,
             "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"hidden_act":"silu",
             "max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":150000,"sliding_window":128,
             "num_local_experts":128,"num_experts_per_tok":4,"attention_bias":true,"tie_word_embeddings":false,
             "swiglu_limit":7.0,"swiglu_alpha":1.702,
             "rope_scaling":{"rope_type":"yarn","factor":32.0,"beta_fast":32.0,"beta_slow":1.0,"truncate":false,
                 "original_max_position_embeddings":4096}})",
         ends_rows() + pre_norm_rows() + llama_attention() +
             Rows{{"layers.#.self_attn.sinks", Role::sinks, "", "", map_exact},
                  {"layers.#.mlp.router", Role::router, "1"},
                  {"layers.#.mlp.experts.gate_up_proj", Role::gate, "1", "",
                      map_exact | map_fused | map_pairs | map_stacked | map_transposed},
                  {"layers.#.mlp.experts.gate_up_proj", Role::up, "1", "",
                      map_exact | map_fused | map_pairs | map_stacked | map_transposed},
                  {"layers.#.mlp.experts.down_proj", Role::down, "1", "", map_exact | map_stacked | map_transposed}},
         {}, decoder_heads(),
         [](Reader& r) {
             rotary_decoder(r);
             r.set_local([](uint32_t i) { return (i + 1) % 2 != 0; });
             r.set_experts(r.u32("num_local_experts num_experts"), r.u32("num_experts_per_tok"), r.main.hidden_dim,
                 [](uint32_t) { return true; });
             r.main.flags |= transformer::flag_renormalise;
             r.main.activation = Activation::clamped_swiglu;
             r.main.mlp_clamp = r.f32("swiglu_limit", 7);
             r.main.mlp_alpha = r.f32("swiglu_alpha", 1.702);
         }},
        {"llama4_text llama4", "Llama4", "model.", rms,
         R"({"vocab_size":202048,"hidden_size":5120,"intermediate_size":8192,"intermediate_size_mlp":16384,
             "num_hidden_layers":48,"num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"hidden_act":"silu",
             "max_position_embeddings":131072,"rms_norm_eps":1e-5,"rope_theta":500000,"num_experts_per_tok":1,
             "num_local_experts":16,"interleave_moe_layer_step":1,"use_qk_norm":true,"no_rope_layer_interval":4,
             "attention_chunk_size":8192,"attn_temperature_tuning":true,"floor_scale":8192,"attn_scale":0.1,
             "bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         ends_rows() + pre_norm_rows() + llama_attention() + gated_rows("layers.#.feed_forward.", "", "!experts") +
             Rows{{"layers.#.feed_forward.router", Role::router, "", "experts"},
                  {"layers.#.feed_forward.experts.gate_up_proj", Role::gate, "", "experts",
                      map_exact | map_fused | map_stacked | map_transposed},
                  {"layers.#.feed_forward.experts.gate_up_proj", Role::up, "", "experts",
                      map_exact | map_fused | map_stacked | map_transposed},
                  {"layers.#.feed_forward.experts.down_proj", Role::down, "", "experts",
                      map_exact | map_stacked | map_transposed}} +
             shared_expert_rows("layers.#.feed_forward.shared_expert."),
         {}, decoder_heads() + std::vector<Head>{{"ForConditionalGeneration", {{"lm_head", Role::lm_head}},
             Head::tokens}, {"TextModel", {}, Head::none}},
         [](Reader& r) {
             r.fill(r.main);
             Config& c = r.main;
             RopeSettings rope = r.rope();
             r.refuse_if(rope.type != "default" && rope.type != "llama3", "rope_scaling");
             r.set_rope(c, rope);
             r.interleaved = true;
             r.chunks = true;

             const uint32_t interval = std::max(1u, r.u32("no_rope_layer_interval"));
             std::vector<double> with_rope;
             for (uint32_t i = 0; i < c.n_layers; i++) with_rope.push_back((i + 1) % interval != 0);
             if (const Json* list = r.given("no_rope_layers"))
                 if (!list->items.empty()) with_rope = r.layer_numbers("no_rope_layers");
             const bool chunked = r.given("attention_chunk_size") != nullptr;
             r.set_local([&](uint32_t i) { return with_rope[i] != 0 && chunked; });
             const bool tuned = r.truth("attn_temperature_tuning"), normed = r.truth("use_qk_norm");
             for (uint32_t i = 0; i < c.n_layers; i++) {
                 if (with_rope[i] == 0)
                     r.flags[i] = static_cast<uint8_t>(r.flags[i] | transformer::layer_no_rope |
                                                       (tuned ? transformer::layer_query_temperature : 0));
                 else if (normed)                              // L2 norm: an RMS norm without weights
                     for (const Role role : {Role::q_norm, Role::k_norm})
                         r.table(0, i + 1, role, 1, c.head_dim, std::vector<float>(c.head_dim, 1.0f)).identity =
                             r.identity("ones of a head");
             }
             c.flags |= transformer::flag_qk_norm_after_rope | transformer::flag_scale_expert_input;
             if (tuned) {
                 c.temperature_floor = r.f32("floor_scale", 8192);
                 c.temperature_scale = r.f32("attn_scale", 0.1);
             }

             std::set<uint32_t> sparse;
             const uint32_t step = std::max(1u, r.u32("interleave_moe_layer_step"));
             for (uint32_t i = step - 1; i < c.n_layers; i += step) sparse.insert(i);
             if (r.given("moe_layers")) {
                 sparse.clear();
                 for (const double i : r.numbers(r.get("moe_layers"), "moe_layers"))
                     sparse.insert(static_cast<uint32_t>(std::max(0.0, i)));
             }
             const uint32_t hidden = c.hidden_dim;
             c.hidden_dim = r.u32("intermediate_size_mlp");
             c.shared_hidden_dim = hidden;
             r.set_experts(r.u32("num_local_experts"), r.u32("num_experts_per_tok"), hidden,
                 [&](uint32_t i) { return sparse.count(i) != 0; });
             c.router = transformer::Router::sigmoid;
         },
         "vision_model. multi_modal_projector."},

        // GPT-2 and the older decoders.
        {"gpt2", "GPT2", "transformer.", layer,
         R"({"vocab_size":50257,"n_positions":1024,"n_embd":768,"n_layer":12,"n_head":12,
             "activation_function":"gelu_new","layer_norm_epsilon":1e-5,"scale_attn_weights":true,"bos_token_id":50256,
             "eos_token_id":50256})",
         ends_rows("wte", "ln_f", "1") +
             Rows{{"wpe", Role::position_embedding}, {"h.#.ln_1", Role::attn_norm_pre, "1"},
                 {"h.#.ln_2", Role::ffn_norm_pre, "1"},
                  {"h.#.attn.c_proj", Role::wo, "1", "", map_transposed}} +
             fused_rows("h.#.attn.c_attn", "1", map_transposed)
                 + plain_rows("h.#.mlp.c_fc", "h.#.mlp.c_proj", "1", map_transposed),
         {}, decoder_heads("lm_head", "", "LMHeadModel"),
         [](Reader& r) {
             r.fill(r.main);
             if (!r.truth("scale_attn_weights", true)) r.main.attn_scale = 1;
             if (r.truth("scale_attn_by_inverse_layer_idx"))
                 r.query_scale = [](uint32_t i) { return 1.0f / static_cast<float>(i + 1); };
         },
         ".attn.bias .attn.masked_bias"},
        {"openai-gpt", "OpenAIGPT", "transformer.", layer,
         R"({"vocab_size":40478,"n_positions":512,"n_embd":768,"n_layer":12,"n_head":12,"afn":"gelu",
             "hidden_act":"gelu","layer_norm_epsilon":1e-5})",
         Rows{{"tokens_embed", Role::token_embedding}, {"positions_embed", Role::position_embedding},
             {"h.#.ln_1", Role::attn_norm_out, "1"},
              {"h.#.ln_2", Role::ffn_norm_out, "1"}, {"h.#.attn.c_proj", Role::wo, "1", "", map_transposed}} +
             fused_rows("h.#.attn.c_attn", "1", map_transposed)
                 + plain_rows("h.#.mlp.c_fc", "h.#.mlp.c_proj", "1", map_transposed),
         {}, decoder_heads("lm_head", "", "LMHeadModel"),
         [](Reader& r) {
             r.fill(r.main);
             const std::string name = r.word("afn");
             r.main.activation = r.activation(name == "gelu" ? "=gelu_new" : "=" + name); // its "gelu" is the tanh form
             r.main.hidden_dim = 4 * r.main.dim;
         },
         ".attn.bias"},
        {"opt", "OPT", "model.decoder.", layer,
         R"({"vocab_size":50272,"hidden_size":768,"num_hidden_layers":12,"ffn_dim":3072,"max_position_embeddings":2048,
             "do_layer_norm_before":true,"num_attention_heads":12,"activation_function":"relu","enable_bias":true,
             "layer_norm_elementwise_affine":true,"bos_token_id":2,"eos_token_id":2})",
         Rows{{"embed_tokens", Role::token_embedding}, {"embed_positions", Role::position_embedding, "", "",
             map_offset},
              {"project_in", Role::embedding_proj, "", "projected"}, {"project_out", Role::final_proj, "", "projected"},
              {"final_layer_norm", Role::final_norm, "1", "final_norm"},
              {"layers.#.self_attn_layer_norm", Role::attn_norm_pre, "1", "do_layer_norm_before"},
              {"layers.#.self_attn_layer_norm", Role::attn_norm_out, "1", "!do_layer_norm_before"},
              {"layers.#.final_layer_norm", Role::ffn_norm_pre, "1", "do_layer_norm_before"},
              {"layers.#.final_layer_norm", Role::ffn_norm_out, "1", "!do_layer_norm_before"}} +
             attention_rows("layers.#.self_attn.", "enable_bias", "enable_bias")
                 + plain_rows("layers.#.fc1", "layers.#.fc2", "enable_bias"),
         {}, decoder_heads(),
         [](Reader& r) {
             Config& c = r.main;
             r.fill(c);
             c.norm_eps = 1e-5f;
             r.position_offset = 2;
             r.ones_for_norms = !r.truth("layer_norm_elementwise_affine", true);
             r.conditions["final_norm"] = r.truth("do_layer_norm_before") && !r.truth("_remove_final_layer_norm");
             c.embedding_dim = r.u32("word_embed_proj_dim", c.dim);
             r.conditions["projected"] = c.embedding_dim != c.dim;
             r.conditions["wide_positions"] = true;            // added behind the projection
             r.head_width = c.embedding_dim != c.dim ? c.embedding_dim : 0;
         }},
        {"gpt_neox", "GPTNeoX", "gpt_neox.", layer,
         R"({"vocab_size":50432,"hidden_size":6144,"num_hidden_layers":44,"num_attention_heads":64,
             "intermediate_size":24576,"hidden_act":"gelu","rotary_pct":0.25,"rotary_emb_base":10000,
             "max_position_embeddings":2048,"layer_norm_eps":1e-5,"use_parallel_residual":true,"attention_bias":true,
             "bos_token_id":0,"eos_token_id":2,"tie_word_embeddings":false})",
         ends_rows("embed_in", "final_layer_norm", "1") + pre_norm_rows("1")
             + fused_rows("layers.#.attention.query_key_value", "attention_bias", map_grouped) +
             Rows{{"layers.#.attention.dense", Role::wo, "attention_bias"}}
                 + plain_rows("layers.#.mlp.dense_h_to_4h", "layers.#.mlp.dense_4h_to_h", "1"),
         {}, decoder_heads("embed_out"),
         [](Reader& r) {
             rotary_decoder(r);
             parallel(r, r.truth("use_parallel_residual", true));
         },
         ".attention.bias .attention.masked_bias"},
        {"gptj", "GPTJ", "transformer.", layer,
         R"({"vocab_size":50400,"n_positions":2048,"n_embd":4096,"n_layer":28,"n_head":16,"rotary_dim":64,
             "activation_function":"gelu_new","layer_norm_epsilon":1e-5,"bos_token_id":50256,"eos_token_id":50256,
             "tie_word_embeddings":false})",
         ends_rows("wte", "ln_f", "1") + parallel_norm_rows("h.#.ln_1", "1") + attention_rows("h.#.attn.", "", "") +
             plain_rows("h.#.mlp.fc_in", "h.#.mlp.fc_out", "1"),
         {}, decoder_heads("lm_head", "1"),
         [](Reader& r) {
             r.fill(r.main);
             r.set_rope_dim(r.main, r.u32("rotary_dim"), RopeSettings());
             parallel(r);
             r.interleaved = true;
         },
         ".attn.bias .attn.masked_bias"},
        {"codegen", "CodeGen", "transformer.", layer,
         R"({"vocab_size":50400,"n_positions":2048,"n_embd":4096,"n_layer":28,"n_head":16,"rotary_dim":64,
             "activation_function":"gelu_new","layer_norm_epsilon":1e-5,"bos_token_id":50256,"eos_token_id":50256,
             "tie_word_embeddings":false})",
         ends_rows("wte", "ln_f", "1") + parallel_norm_rows("h.#.ln_1", "1")
             + fused_rows("h.#.attn.qkv_proj", "", map_blocks) +
             Rows{{"h.#.attn.out_proj", Role::wo}} + plain_rows("h.#.mlp.fc_in", "h.#.mlp.fc_out", "1"),
         {}, decoder_heads("lm_head", "1"),
         [](Reader& r) {
             r.fill(r.main);
             if (r.main.n_heads % 4) r.refuse("n_head", "is no multiple of 4");
             r.set_rope_dim(r.main, r.u32("rotary_dim"), RopeSettings());
             parallel(r);
             r.interleaved = true;
         },
         ".causal_mask"},
        {"phi", "Phi", "model.", layer,
         R"({"vocab_size":51200,"hidden_size":2048,"intermediate_size":8192,"num_hidden_layers":24,
             "num_attention_heads":32,"hidden_act":"gelu_new","max_position_embeddings":2048,"layer_norm_eps":1e-5,
             "partial_rotary_factor":0.5,"bos_token_id":1,"eos_token_id":2,"tie_word_embeddings":false})",
         ends_rows("embed_tokens", "final_layernorm", "1") + parallel_norm_rows("layers.#.input_layernorm", "1") +
             attention_rows("layers.#.self_attn.", "1", "1", "dense")
                 + qk_norm_rows("qk_layernorm", "1", "q_layernorm", "k_layernorm") +
             plain_rows("layers.#.mlp.fc1", "layers.#.mlp.fc2", "1"),
         {}, decoder_heads("lm_head", "1"),
         [](Reader& r) {
             rotary_decoder(r);
             parallel(r);
             r.main.flags |= transformer::flag_qk_norm_layer;
         }},
        {"falcon", "Falcon", "transformer.", layer,
         R"({"vocab_size":65024,"hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,
             "layer_norm_epsilon":1e-5,"multi_query":true,"parallel_attn":true,"max_position_embeddings":2048,
             "activation":"gelu","bos_token_id":11,"eos_token_id":11})",
         ends_rows("word_embeddings", "ln_f", "1") + fused_rows("h.#.self_attention.query_key_value", "bias",
             map_grouped) +
             Rows{{"h.#.self_attention.dense", Role::wo, "bias"},
                  {"h.#.ln_attn", Role::attn_norm_pre, "1", "two_norms"},
                  {"h.#.ln_mlp", Role::ffn_norm_pre, "1", "two_norms"},
                  {"h.#.input_layernorm", Role::attn_norm_pre, "1", "!two_norms"},
                  {"h.#.input_layernorm", Role::ffn_norm_pre, "1", "one_norm"},
                  {"h.#.post_attention_layernorm", Role::ffn_norm_pre, "1", "!parallel"}} +
             plain_rows("h.#.mlp.dense_h_to_4h", "h.#.mlp.dense_4h_to_h", "bias"),
         {}, decoder_heads(),
         [](Reader& r) {
             Config& c = r.main;
             r.fill(c);
             const bool newer = r.truth("new_decoder_architecture"), side_by_side = r.truth("parallel_attn");
             c.n_kv_heads = newer ? r.u32("num_kv_heads", c.n_heads) : r.truth("multi_query") ? 1 : c.n_heads;
             if (!c.n_kv_heads || c.n_heads % c.n_kv_heads) r.refuse("num_kv_heads");
             const uint32_t norms = r.u32("num_ln_in_parallel_attn", newer ? 2 : 1);
             r.refuse_if(newer && !side_by_side, "new_decoder_architecture"); // transformers has no such block either
             r.refuse_if(norms < 1 || norms > 2 || (norms == 2 && !newer), "num_ln_in_parallel_attn");
             parallel(r, side_by_side);
             r.conditions["two_norms"] = side_by_side && norms == 2;
             r.conditions["one_norm"] = side_by_side && norms == 1;
             if (!r.truth("alibi")) return r.set_rope(c, r.rope());
             // Unlike BLOOM's it is scaled with the scores, and its slopes have the precision of bfloat16. It acts
             // once, as the models were trained and as SDPA attention, transformers' default, has it; its eager
             // attention adds it twice.
             std::vector<float> slopes = alibi_slopes(c.n_heads);
             for (float& s : slopes) s = transformer::bf16_to_f32(transformer::f32_to_bf16(s)) * c.attn_scale;
             add_alibi(r, std::move(slopes));
         }},
        {"bloom", "Bloom", "transformer.", layer,
         R"({"vocab_size":250880,"hidden_size":64,"n_layer":2,"n_head":8,"layer_norm_epsilon":1e-5,
             "hidden_act":"gelu_new","seq_length":2048,"bos_token_id":1,"eos_token_id":2})",
         ends_rows("word_embeddings", "ln_f", "1") + Rows{{"word_embeddings_layernorm", Role::embedding_norm, "1"}}
             + pre_norm_rows("1", "h.#.") +
             fused_rows("h.#.self_attention.query_key_value", "1", map_grouped)
                 + Rows{{"h.#.self_attention.dense", Role::wo, "1"}} +
             plain_rows("h.#.mlp.dense_h_to_4h", "h.#.mlp.dense_4h_to_h", "1"),
         {}, decoder_heads(),
         [](Reader& r) {
             r.fill(r.main);
             r.refuse_if(r.truth("apply_residual_connection_post_layernorm"),
                 "apply_residual_connection_post_layernorm");
             r.main.hidden_dim = 4 * r.main.dim;
             add_alibi(r, alibi_slopes(r.main.n_heads));
         }},
        {"mpt", "Mpt", "transformer.", layer,
         R"({"d_model":2048,"n_heads":16,"n_layers":24,"max_seq_len":2048,"vocab_size":50368,"layer_norm_epsilon":1e-5,
             "hidden_act":"gelu"})",
         ends_rows("wte", "norm_f") + Rows{{"blocks.#.norm_1", Role::attn_norm_pre},
             {"blocks.#.norm_2", Role::ffn_norm_pre}, {"blocks.#.attn.out_proj", Role::wo}} +
             fused_rows("blocks.#.attn.Wqkv", "") + plain_rows("blocks.#.ffn.up_proj", "blocks.#.ffn.down_proj", ""),
         {}, decoder_heads(),
         [](Reader& r) {
             r.fill(r.main);
             r.main.hidden_dim = 4 * r.main.dim;
             r.refuse_if(r.given("logit_scale") != nullptr, "logit_scale");
             double bias_max = 8;
             if (const Json* attention = r.given("attn_config")) {
                 const auto set = [&](const char* key) {
                     const Json* json = attention->find(key);
                     return json && json->kind != Json::null ? json : nullptr;
                 };
                 if (attention->kind != Json::object) r.refuse("attn_config", "is no object");
                 const auto wrong = [&](const char* key) {
                     throw Error(r.where + ": attn_config: " + key + " = " + json_text(*set(key)) +
                                 " is not supported");
                 };
                 if (set("alibi") && !set("alibi")->flag) wrong("alibi");
                 for (const char* key : {"qk_ln", "prefix_lm"})
                     if (set(key) && set(key)->flag) wrong(key);
                 if (set("attn_type") && set("attn_type")->string != "multihead_attention") wrong("attn_type");
                 if (set("alibi_bias_max")) bias_max = r.number(*set("alibi_bias_max"), "alibi_bias_max");
                 if (set("clip_qkv")) r.main.qkv_clip = static_cast<float>(r.number(*set("clip_qkv"), "clip_qkv"));
                 if (set("softmax_scale"))
                     r.main.attn_scale = static_cast<float>(r.number(*set("softmax_scale"), "softmax_scale"));
             }
             add_alibi(r, mpt_slopes(r.main.n_heads, bias_max));
         }},

        // Encoders.
        {"bert", "Bert", "bert.", layer,
         R"({"vocab_size":30522,"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,
             "intermediate_size":3072,"hidden_act":"gelu","max_position_embeddings":512,"type_vocab_size":2,
             "layer_norm_eps":1e-12,"pad_token_id":0})",
         bert_rows(), {},
         std::vector<Head>{{"Model", {{"bert.pooler.dense|pooler.dense", Role::head_dense, "1", "", map_unused}},
             Head::none},
                           {"ForMaskedLM", mlm_rows("cls.predictions.transform.dense",
                               "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                                                    "cls.predictions.bias|cls.predictions.decoder.bias"),
                            Head::tokens, Pooling::none, "hidden_act"},
                           {"LMHeadModel", mlm_rows("cls.predictions.transform.dense",
                               "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
                                                    "cls.predictions.bias|cls.predictions.decoder.bias"),
                            Head::tokens, Pooling::none, "hidden_act"},
                           {"ForSequenceClassification", classifier_rows("bert.pooler.dense", "classifier"),
                               Head::labels, Pooling::first, "=tanh"}} +
             row_heads(),
         [](Reader& r) {
             lone_encoder(r);
             bert_positions(r, 0, "encoder.layer.#.attention.self.");
         },
         "cls.seq_relationship. bert.pooler. cls.predictions."},
        {"roberta xlm-roberta camembert", "Roberta XLMRoberta Camembert", "roberta.", layer,
         R"({"vocab_size":50265,"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,
             "intermediate_size":3072,"hidden_act":"gelu","max_position_embeddings":512,"type_vocab_size":2,
             "layer_norm_eps":1e-12,"pad_token_id":1,"bos_token_id":0,"eos_token_id":2})",
         bert_rows(), {},
         std::vector<Head>{{"Model", {{"roberta.pooler.dense|pooler.dense", Role::head_dense, "1", "", map_unused}},
             Head::none},
                           {"ForMaskedLM", mlm_rows("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder",
                               "lm_head.bias|lm_head.decoder.bias"), Head::tokens,
                            Pooling::none, "=gelu"},
                           {"ForSequenceClassification", classifier_rows("classifier.dense", "classifier.out_proj"),
                               Head::labels, Pooling::first, "=tanh"}} +
             row_heads(),
         [](Reader& r) {
             lone_encoder(r);
             bert_positions(r, r.u32("pad_token_id") + 1, "encoder.layer.#.attention.self.");
         },
         "roberta.pooler. lm_head."},
        {"distilbert", "DistilBert", "distilbert.", layer,
         R"({"vocab_size":30522,"max_position_embeddings":512,"n_layers":6,"n_heads":12,"dim":768,"hidden_dim":3072,
             "activation":"gelu","pad_token_id":0})",
         Rows{{"embeddings.word_embeddings", Role::token_embedding},
             {"embeddings.position_embeddings", Role::position_embedding},
              {"embeddings.LayerNorm", Role::embedding_norm, "1"},
              {"transformer.layer.#.attention.q_lin", Role::wq, "1"},
              {"transformer.layer.#.attention.k_lin", Role::wk, "1"},
              {"transformer.layer.#.attention.v_lin", Role::wv, "1"},
              {"transformer.layer.#.attention.out_lin", Role::wo, "1"},
              {"transformer.layer.#.sa_layer_norm", Role::attn_norm_out, "1"},
              {"transformer.layer.#.output_layer_norm", Role::ffn_norm_out, "1"}} +
             plain_rows("transformer.layer.#.ffn.lin1", "transformer.layer.#.ffn.lin2", "1"),
         {},
         std::vector<Head>{{"Model", {}, Head::none},
                           {"ForMaskedLM", {{"vocab_transform", Role::head_dense, "1"},
                           {"vocab_layer_norm", Role::head_norm, "1"}, {"vocab_projector", Role::lm_head, "1"}},
                            Head::tokens, Pooling::none, "activation"},
                           {"ForSequenceClassification", classifier_rows("pre_classifier", "classifier"), Head::labels,
                               Pooling::first, "=relu"}} +
             row_heads(),
         [](Reader& r) {
             lone_encoder(r);
             r.main.norm_eps = 1e-12f;
         },
         "vocab_"},
        {"albert", "Albert", "albert.", layer,
         R"({"vocab_size":30000,"embedding_size":128,"hidden_size":4096,"num_hidden_layers":12,"num_hidden_groups":1,
             "num_attention_heads":64,"intermediate_size":16384,"inner_group_num":1,"hidden_act":"gelu_new",
             "max_position_embeddings":512,"type_vocab_size":2,"layer_norm_eps":1e-12,"pad_token_id":0,"bos_token_id":2,
             "eos_token_id":3})",
         Rows{{"embeddings.word_embeddings", Role::token_embedding},
             {"embeddings.token_type_embeddings", Role::type_embedding, "", "token_types"},
              {"embeddings.position_embeddings", Role::position_embedding},
              {"embeddings.LayerNorm", Role::embedding_norm, "1"},
              {"encoder.embedding_hidden_mapping_in", Role::embedding_proj, "1"},
              {"encoder.albert_layer_groups.#.attention.query", Role::wq, "1"},
              {"encoder.albert_layer_groups.#.attention.key", Role::wk, "1"},
              {"encoder.albert_layer_groups.#.attention.value", Role::wv, "1"},
              {"encoder.albert_layer_groups.#.attention.dense", Role::wo, "1"},
              {"encoder.albert_layer_groups.#.attention.LayerNorm", Role::attn_norm_out, "1"},
              {"encoder.albert_layer_groups.#.full_layer_layer_norm", Role::ffn_norm_out, "1"}} +
             plain_rows("encoder.albert_layer_groups.#.ffn", "encoder.albert_layer_groups.#.ffn_output", "1"),
         {},
         std::vector<Head>{{"Model", {{"albert.pooler|pooler", Role::head_dense, "1", "", map_unused}}, Head::none},
                           {"ForMaskedLM", mlm_rows("predictions.dense", "predictions.LayerNorm",
                               "predictions.decoder", "predictions.bias|predictions.decoder.bias"),
                            Head::tokens, Pooling::none, "hidden_act"},
                           {"ForSequenceClassification", classifier_rows("albert.pooler", "classifier"), Head::labels,
                               Pooling::first, "=tanh"}} +
             row_heads(),
         [](Reader& r) {
             lone_encoder(r);
             r.refuse_if(r.word("position_embedding_type", "absolute") != "absolute", "position_embedding_type");
             const uint32_t layers = r.main.n_layers, groups = r.u32("num_hidden_groups"),
                 inner = r.u32("inner_group_num");
             if (!groups || groups > layers || !inner || inner > 1000)
                 r.refuse("num_hidden_groups", "does not fit the layers");
             r.layer_name = [layers, groups, inner](uint32_t i) {
                 const auto group = static_cast<uint32_t>(i / inner / (static_cast<double>(layers) / groups));
                 return std::to_string(group) + ".albert_layers." + std::to_string(i % inner);
             };
             r.set_layers(r.main, uint64_t{layers} * inner);
             r.main.embedding_dim = r.u32("embedding_size");
             if (r.head->outputs == Head::tokens) r.head_width = r.main.embedding_dim;
         },
         "albert.pooler predictions. sop_classifier."},
        {"modernbert", "ModernBert", "model.", layer,
         R"({"vocab_size":50368,"hidden_size":768,"intermediate_size":1152,"num_hidden_layers":22,
             "num_attention_heads":12,"hidden_activation":"gelu","max_position_embeddings":8192,"norm_eps":1e-5,
             "global_rope_theta":160000,"global_attn_every_n_layers":3,"local_attention":128,"local_rope_theta":10000,
             "decoder_bias":true,"classifier_pooling":"cls","classifier_activation":"gelu","pad_token_id":50283,
             "eos_token_id":50282,"bos_token_id":50281})",
         Rows{{"embeddings.tok_embeddings", Role::token_embedding},
             {"embeddings.norm", Role::embedding_norm, "norm_bias"},
              {"final_norm", Role::final_norm, "norm_bias"}, {"layers.#.attn_norm", Role::attn_norm_pre, "norm_bias",
                  "!first_layer"},
              {"layers.#.mlp_norm", Role::ffn_norm_pre, "norm_bias"}, {"layers.#.attn.Wo", Role::wo, "attention_bias"},
              {"layers.#.mlp.Wi", Role::gate, "mlp_bias", "", map_fused},
              {"layers.#.mlp.Wi", Role::up, "mlp_bias", "", map_fused},
              {"layers.#.mlp.Wo", Role::down, "mlp_bias"}} +
             fused_rows("layers.#.attn.Wqkv", "attention_bias"),
         {},
         std::vector<Head>{{"Model", {}, Head::none},
                           {"ForMaskedLM", {{"head.dense", Role::head_dense, "classifier_bias"},
                           {"head.norm", Role::head_norm, "norm_bias"}, {"decoder", Role::lm_head, "decoder_bias"}},
                            Head::tokens, Pooling::none, "classifier_activation"},
                           {"ForSequenceClassification",
                            {{"head.dense", Role::head_dense, "classifier_bias"},
                            {"head.norm", Role::head_norm, "norm_bias"}, {"classifier", Role::lm_head, "1"}},
                            Head::labels, Pooling::first, "classifier_activation"},
                           {"ForTokenClassification",
                            {{"head.dense", Role::head_dense, "classifier_bias"},
                            {"head.norm", Role::head_norm, "norm_bias"}, {"classifier", Role::lm_head, "1"}},
                            Head::labels, Pooling::none, "classifier_activation"}},
         [](Reader& r) {
             Config& c = r.main;
             lone_encoder(r);
             const RopeSettings whole = r.rope("full_attention", "global_rope_theta");
             const RopeSettings local = r.rope("sliding_attention",
                 r.given("local_rope_theta") ? "local_rope_theta" : "global_rope_theta");
             const bool same = whole.type == "default" && local.type == "default" && whole.theta == local.theta;
             r.set_rope(c, whole, 0, same ? nullptr : &local);
             const uint32_t every = std::max(1u, r.u32("global_attn_every_n_layers")),
                 side = r.u32("local_attention") / 2;
             r.set_local([&](uint32_t i) { return i % every != 0; }, side + 1);
             c.window_ahead = c.window ? side : 0;
             for (uint8_t& f : r.flags)
                 if (!same && (f & transformer::layer_local))
                     f = static_cast<uint8_t>(f | transformer::layer_rope_local);
             const std::string pooling = r.word("classifier_pooling");
             r.refuse_if(pooling != "cls" && pooling != "mean", "classifier_pooling");
             r.mean_pooling = pooling == "mean";
         },
         "head. decoder."},
        {"deberta-v2", "DebertaV2", "deberta.", layer,
         R"({"vocab_size":128100,"hidden_size":1536,"num_hidden_layers":24,"num_attention_heads":24,
             "intermediate_size":6144,"hidden_act":"gelu","max_position_embeddings":512,"type_vocab_size":0,
             "layer_norm_eps":1e-7,"position_biased_input":true,"pooler_hidden_act":"gelu","legacy":true,
             "pad_token_id":0})",
         Rows{{"embeddings.word_embeddings", Role::token_embedding},
             {"embeddings.token_type_embeddings", Role::type_embedding, "", "token_types"},
              {"embeddings.position_embeddings", Role::position_embedding, "", "position_biased_input"},
              {"embeddings.embed_proj", Role::embedding_proj, "", "projected"},
              {"embeddings.LayerNorm", Role::embedding_norm, "1"},
              {"encoder.layer.#.attention.self.query_proj", Role::wq, "1"},
              {"encoder.layer.#.attention.self.key_proj", Role::wk, "1"},
              {"encoder.layer.#.attention.self.value_proj", Role::wv, "1"},
              {"encoder.layer.#.attention.output.dense", Role::wo, "1"},
              {"encoder.layer.#.attention.output.LayerNorm", Role::attn_norm_out, "1"},
              {"encoder.layer.#.output.LayerNorm", Role::ffn_norm_out, "1"}} +
             plain_rows("encoder.layer.#.intermediate.dense", "encoder.layer.#.output.dense", "1"),
         {},
         std::vector<Head>{{"Model", {}, Head::none},
                           {"ForMaskedLM",
                            mlm_rows("cls.predictions.transform.dense|lm_predictions.lm_head.dense",
                                     "cls.predictions.transform.LayerNorm|lm_predictions.lm_head.LayerNorm",
                                     "cls.predictions.decoder|lm_predictions.lm_head.decoder",
                                     "cls.predictions.bias|cls.predictions.decoder.bias|"
                                     "lm_predictions.lm_head.bias"),
                            Head::tokens, Pooling::none, "hidden_act"},
                           {"ForSequenceClassification", classifier_rows("pooler.dense", "classifier"), Head::labels,
                               Pooling::first, "pooler_hidden_act"}} +
             row_heads(),
         [](Reader& r) {
             Config& c = r.main;
             lone_encoder(r);
             r.refuse_if(r.u32("conv_kernel_size", 0) > 0, "conv_kernel_size");
             c.embedding_dim = r.u32("embedding_size", c.dim);
             r.conditions["projected"] = c.embedding_dim != c.dim;
             r.conditions["wide_embedding_norm"] = true;
             if (r.head->outputs == Head::tokens) r.head_width = c.embedding_dim;
             if (r.u32("pooler_hidden_size", c.dim) != c.dim) r.refuse("pooler_hidden_size");
             const Json* types = r.given("pos_att_type");
             std::vector<std::string> kinds;
             if (types && types->kind == Json::text) kinds = split(types->string, '|');
             for (size_t i = 0; types && i < types->items.size(); i++) kinds.push_back(types->items[i].string);
             uint32_t factor = 1;
             for (const char* kind : {"c2p", "p2c"}) {
                 r.conditions[kind] = false;
                 for (const std::string& k : kinds) {
                     const bool known = k.find("c2p") != std::string::npos || k.find("p2c") != std::string::npos;
                     r.refuse_if(!known, "pos_att_type");
                     if (k.find(kind) != std::string::npos) r.conditions[kind] = true;
                 }
                 factor += r.conditions[kind];
             }
             c.attn_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_dim * factor)));
             if (!r.truth("relative_attention")) return;
             const double given = r.real("max_relative_positions", -1), buckets = r.real("position_buckets", -1);
             const double most = given < 1 ? c.max_seq_len : given;
             if (most < 2 || most > 65536 || buckets > 65536 || (buckets > 0
                 && (buckets < 4 || most - 1 <= std::floor(buckets / 2)))) r.refuse("position_buckets");
             add_disentangled(r, buckets > 0 ? static_cast<uint32_t>(buckets) : 0, static_cast<uint32_t>(most));
         },
         "mask_predictions. lm_predictions. cls.predictions. deberta.pooler. pooler."},
        {"mpnet", "MPNet", "mpnet.", layer,
         R"({"vocab_size":30527,"hidden_size":768,"num_hidden_layers":12,"num_attention_heads":12,
             "intermediate_size":3072,"hidden_act":"gelu","max_position_embeddings":512,"layer_norm_eps":1e-12,
             "relative_attention_num_buckets":32,"pad_token_id":1,"bos_token_id":0,"eos_token_id":2})",
         Rows{{"embeddings.word_embeddings", Role::token_embedding},
             {"embeddings.position_embeddings", Role::position_embedding, "", "", map_offset},
              {"embeddings.LayerNorm", Role::embedding_norm, "1"}, {"encoder.layer.#.attention.attn.q", Role::wq, "1"},
              {"encoder.layer.#.attention.attn.k", Role::wk, "1"}, {"encoder.layer.#.attention.attn.v", Role::wv, "1"},
              {"encoder.layer.#.attention.attn.o", Role::wo, "1"},
              {"encoder.layer.#.attention.LayerNorm", Role::attn_norm_out, "1"},
              {"encoder.layer.#.output.LayerNorm", Role::ffn_norm_out, "1"}} +
             plain_rows("encoder.layer.#.intermediate.dense", "encoder.layer.#.output.dense", "1"),
         {},
         std::vector<Head>{{"Model", {{"mpnet.pooler.dense|pooler.dense", Role::head_dense, "1", "", map_unused}},
             Head::none},
                           {"ForMaskedLM", mlm_rows("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder",
                               "lm_head.bias|lm_head.decoder.bias"), Head::tokens,
                            Pooling::none, "=gelu"},
                           {"ForSequenceClassification", classifier_rows("classifier.dense", "classifier.out_proj"),
                               Head::labels, Pooling::first, "=tanh"}} +
             row_heads(),
         [](Reader& r) {
             lone_encoder(r);
             r.position_offset = 2;                            // its padding index is 1 whatever pad_token_id says
             if (r.main.max_seq_len <= 2) r.refuse("max_position_embeddings", "leaves no positions");
             r.main.max_seq_len -= 2;
             const uint32_t buckets = r.u32("relative_attention_num_buckets");
             if (buckets != 32) r.refuse("relative_attention_num_buckets"); // transformers counts on 32
             add_relative_bias(r, r.main, 0, buckets, 128, [](
                 uint32_t) { return std::string("encoder.relative_attention_bias.weight"); });
         },
         "mpnet.pooler. lm_head."},
        {"clip_text_model", "CLIPText", "text_model.", layer,
         R"({"vocab_size":49408,"hidden_size":512,"intermediate_size":2048,"num_hidden_layers":12,
             "num_attention_heads":8,"max_position_embeddings":77,"hidden_act":"quick_gelu","layer_norm_eps":1e-5,
             "pad_token_id":1,"bos_token_id":49406,"eos_token_id":49407})",
         Rows{{"embeddings.token_embedding", Role::token_embedding},
             {"embeddings.position_embedding", Role::position_embedding},
              {"final_layer_norm", Role::final_norm, "1"}, {"encoder.layers.#.layer_norm1", Role::attn_norm_pre, "1"},
              {"encoder.layers.#.layer_norm2", Role::ffn_norm_pre, "1"}} +
             attention_rows("encoder.layers.#.self_attn.", "1", "1")
                 + plain_rows("encoder.layers.#.mlp.fc1", "encoder.layers.#.mlp.fc2", "1"),
         {}, std::vector<Head>{{"Model", {}, Head::none}}, [](Reader& r) { r.fill(r.main); }},

        // Encoder-decoders.
        {"t5", "T5", "", rms,
         R"({"vocab_size":32128,"d_model":512,"d_kv":64,"d_ff":2048,"num_layers":6,"num_heads":8,
             "relative_attention_num_buckets":32,"relative_attention_max_distance":128,"layer_norm_epsilon":1e-6,
             "feed_forward_proj":"relu","hidden_act":"relu","n_positions":512,"pad_token_id":0,"eos_token_id":1})",
         t5_rows("decoder"), t5_rows("encoder"),
         std::vector<Head>{{"ForConditionalGeneration", {{"lm_head", Role::lm_head}}, Head::tokens},
             {"Model", {}, Head::none}, {"EncoderModel", {}, Head::none}}, t5,
         "EncDecAttention.relative_attention_bias. .embed_tokens."},
        {"umt5 mt5", "UMT5 MT5", "", rms,
         R"({"vocab_size":250112,"d_model":512,"d_kv":64,"d_ff":1024,"num_layers":8,"num_heads":6,
             "relative_attention_num_buckets":32,"relative_attention_max_distance":128,"layer_norm_epsilon":1e-6,
             "feed_forward_proj":"gated-gelu","hidden_act":"relu","n_positions":512,"pad_token_id":0,"eos_token_id":1,
             "decoder_start_token_id":0})",
         t5_rows("decoder"), t5_rows("encoder"),
         std::vector<Head>{{"ForConditionalGeneration", {{"lm_head", Role::lm_head}}, Head::tokens},
             {"Model", {}, Head::none}, {"EncoderModel", {}, Head::none}}, t5,
         "EncDecAttention.relative_attention_bias. .embed_tokens."},
        {"bart", "Bart", "model.", layer,
         R"({"vocab_size":50265,"max_position_embeddings":1024,"encoder_layers":12,"encoder_ffn_dim":4096,
             "encoder_attention_heads":16,"decoder_layers":12,"decoder_ffn_dim":4096,"decoder_attention_heads":16,
             "activation_function":"gelu","d_model":1024,"pad_token_id":1,"bos_token_id":0,"eos_token_id":2,
             "decoder_start_token_id":2})",
         bart_rows("decoder"), bart_rows("encoder"), bart_heads("ForConditionalGeneration"),
             [](Reader& r) { bart(r, false, true, false); }},
        {"mbart", "MBart", "model.", layer,
         R"({"vocab_size":50265,"max_position_embeddings":1024,"encoder_layers":12,"encoder_ffn_dim":4096,
             "encoder_attention_heads":16,"decoder_layers":12,"decoder_ffn_dim":4096,"decoder_attention_heads":16,
             "activation_function":"gelu","d_model":1024,"pad_token_id":1,"bos_token_id":0,"eos_token_id":2})",
         bart_rows("decoder"), bart_rows("encoder"), bart_heads("ForConditionalGeneration"),
             [](Reader& r) { bart(r, true, true, false); }},
        {"marian", "Marian", "model.", layer,
         R"({"vocab_size":58101,"max_position_embeddings":1024,"encoder_layers":12,"encoder_ffn_dim":4096,
             "encoder_attention_heads":16,"decoder_layers":12,"decoder_ffn_dim":4096,"decoder_attention_heads":16,
             "activation_function":"gelu","d_model":1024,"share_encoder_decoder_embeddings":true,"pad_token_id":58100,
             "eos_token_id":0,"decoder_start_token_id":58100})",
         bart_rows("decoder"), bart_rows("encoder"), bart_heads("MTModel"),
         [](Reader& r) {
             bart(r, false, false, true);
             const bool shared = r.truth("share_encoder_decoder_embeddings", true);
             r.conditions["shared_embedding"] = shared;
             if (!shared) r.main.vocab_size = r.u32("decoder_vocab_size", r.main.vocab_size);
         }},
        {"pegasus", "Pegasus", "model.", layer,
         R"({"vocab_size":50265,"max_position_embeddings":1024,"encoder_layers":12,"encoder_ffn_dim":4096,
             "encoder_attention_heads":16,"decoder_layers":12,"decoder_ffn_dim":4096,"decoder_attention_heads":16,
             "activation_function":"gelu","d_model":1024,"pad_token_id":0,"eos_token_id":1,
             "decoder_start_token_id":0})",
         bart_rows("decoder"), bart_rows("encoder"), bart_heads("ForConditionalGeneration"),
             [](Reader& r) { bart(r, true, false, true); }},
        {"whisper", "Whisper", "model.", layer,
         R"({"vocab_size":51865,"num_mel_bins":80,"encoder_layers":4,"encoder_attention_heads":6,"decoder_layers":4,
             "decoder_attention_heads":6,"decoder_ffn_dim":1536,"encoder_ffn_dim":1536,"activation_function":"gelu",
             "d_model":384,"max_source_positions":1500,"max_target_positions":448,"pad_token_id":50256,
             "bos_token_id":50256,"eos_token_id":50256,"decoder_start_token_id":50257})",
         bart_rows("decoder", ""), whisper_encoder_rows(), whisper_heads, whisper},

        // Our own kinds.
        {"TorchTransformer", "TorchTransformer", "", layer, R"({"num_hidden_layers":1,"max_position_embeddings":512})",
         Rows{{"tgt_embed", Role::token_embedding}, {"transformer.decoder.norm", Role::final_norm, "1"}}
             + torch_rows("transformer.decoder.layers.#.", true),
         Rows{{"src_embed", Role::token_embedding}, {"transformer.encoder.norm", Role::final_norm, "1"}}
             + torch_rows("transformer.encoder.layers.#.", false),
         std::vector<Head>{{"", {{"out", Role::lm_head, "1"}}, Head::tokens}}, torch_transformer},
        {"TorchLayer", "TorchLayer", "", layer, R"({"num_hidden_layers":1,"max_position_embeddings":512})",
         {}, {}, std::vector<Head>{{"", {}, Head::none}},
         [](Reader& r) {
             r.fill(r.main);
             const std::string kind = r.word("layer");
             r.refuse_if(kind != "encoder" && kind != "decoder", "layer");
             r.main.flags = kind == "encoder" ? 0 : transformer::flag_causal | transformer::flag_cross;
             r.main_rows = torch_rows("layer#.", kind == "decoder");
             r.layer_name = [](uint32_t) { return std::string(); };
         }},
        {"MiniTransformer", "MiniTransformer", "", layer, R"({"hidden_act":"gelu","max_position_embeddings":512})",
         Rows{{"ln_final", Role::final_norm, "1"}, {"blocks.#.ln1", Role::attn_norm_pre, "1"},
             {"blocks.#.ln2", Role::ffn_norm_pre, "1"},
              {"blocks.#.attn.out_proj", Role::wo, "1"}} +
             fused_rows("blocks.#.attn.in_proj", "1", map_underscore)
                 + plain_rows("blocks.#.ffn.0", "blocks.#.ffn.2", "1"),
         {}, std::vector<Head>{{"", {}, Head::none}},
         [](Reader& r) {
             r.fill(r.main);
             if (!r.truth("causal")) r.main.flags = 0;
         }},
        {"Blocks", "Blocks", "", rms, R"({"hidden_act":"gelu","max_position_embeddings":512,"norm":"rms","block":"pre",
                                          "ffn":"swiglu","rope":"half"})",
         Rows{{"embed", Role::token_embedding}, {"norm", Role::final_norm, "layer_norm", "!post"},
              {"layers.#.n1", Role::attn_norm_pre, "layer_norm", "!post"},
              {"layers.#.n1", Role::ffn_norm_pre, "layer_norm", "parallel"},
              {"layers.#.n2", Role::ffn_norm_pre, "layer_norm", "pre"},
              {"layers.#.n1b", Role::attn_norm_post, "layer_norm", "sandwich"},
              {"layers.#.n2b", Role::ffn_norm_post, "layer_norm", "sandwich"},
              {"layers.#.n1", Role::attn_norm_out, "layer_norm", "post"},
              {"layers.#.n2", Role::ffn_norm_out, "layer_norm", "post"}, {"layers.#.wq", Role::wq, "bias"},
              {"layers.#.wk", Role::wk, "bias"},
              {"layers.#.wv", Role::wv, "bias"}, {"layers.#.wo", Role::wo, "bias"},
              {"layers.#.w_gate", Role::gate, "bias", "gated"}} +
             plain_rows("layers.#.w_up", "layers.#.w_down", "bias"),
         {}, std::vector<Head>{{"", {{"head", Role::lm_head}}, Head::tokens}}, blocks},
        {"ModernEncoderDecoder", "ModernEncoderDecoder", "", rms,
         R"({"hidden_act":"silu","max_position_embeddings":512})",
         modern_rows("decoder"), modern_rows("encoder"),
         std::vector<Head>{{"", {{"out", Role::lm_head, "", "", map_exact}}, Head::tokens}},
         [](Reader& r) {
             rotary_decoder(r);
             r.encoder = r.main;
             r.encoder.flags = 0;
             r.main.flags |= transformer::flag_cross;
             r.tied = false;
         }},
    };
    return all;
}

}  // namespace huggingface

// ---- Readers --------------------------------------------------------------------------------------------------------

// Whether modules.json of sentence-transformers ends with one that scales the vector to length 1.
inline bool normalises(const std::string& folder)
{
    const std::string path = join(folder, "modules.json");
    if (!is_file(path)) return false;
    for (const Json& module : read_json(path).items) {
        const Json* const type = module.find("type");
        const std::string name = type ? type->string : "";
        if (name.size() >= 9 && name.compare(name.size() - 9, 9, "Normalize") == 0) return true;
    }
    return false;
}
// sentence-transformers says beside a headless encoder which rows make the vector of a text.
inline void read_pooling(const std::string& folder, Source& source)
{
    const std::string path = join(join(folder, "1_Pooling"), "config.json");
    if (source.main.n_outputs || source.encoder.n_layers || !is_file(path)) return;
    const Json json = read_json(path);
    for (const auto& [key, pooling] : {std::pair("pooling_mode_cls_token", Pooling::first),
        std::pair("pooling_mode_mean_tokens", Pooling::mean),
                                       std::pair("pooling_mode_lasttoken", Pooling::last)})
        if (const Json* mode = json.find(key))
            if (mode->flag) source.main.pooling = pooling;
    if (source.main.pooling != Pooling::none && normalises(folder)) source.main.flags |= transformer::flag_normalise;
}

inline Source read_huggingface(const std::string& folder, const std::string& tokenizer)
{
    const std::string path = join(folder, "config.json");
    if (!is_file(path)) throw Error(folder + ": there is no config.json in this folder");
    huggingface::Reader reader(path, &folder);
    read_pooling(folder, reader.source);
    join_tokenizer(reader.source.vocabulary, folder, tokenizer);
    return std::move(reader.source);
}

// A config.json, or a folder that has one: shapes without weights.
inline Source read_config_only(const std::string& path)
{
    return std::move(huggingface::Reader(is_directory(path) ? join(path, "config.json") : path, nullptr).source);
}

// What transformers counts for the model of a config.json or folder.
inline Parameters count_parameters(const std::string& path)
{
    return huggingface::Reader(is_directory(path) ? join(path, "config.json") : path, nullptr).parameters();
}

}  // namespace weights
#endif
