// weights/block.hpp - the block of a model in words: its sub-layers, which norm slots are filled, what it costs
//
// A stack is a few kinds of blocks, a block a few sub-layers. What is said here of each is what the drawing in text,
// the picture (picture.hpp) and the review (review.hpp) are made of.
#ifndef TRANSFORMER_WEIGHTS_BLOCK_HPP
#define TRANSFORMER_WEIGHTS_BLOCK_HPP

#include "info.hpp"

#include <cmath>

namespace weights {

// ---- Slots ----------------------------------------------------------------------------------------------------------

using Slots = std::set<std::string>; // names of the roles that are present, "gate x 8" if stacked

inline std::string role_text(const TensorSource& t)
{
    return std::string(transformer::role_name(t.role & 0x7f)) + (t.role & transformer::role_bias ? ".b" : "") +
           (t.count > 1 ? " x " + std::to_string(t.count) : "");
}
inline bool is_tied(const Source& s, const TensorSource& t)   // another slot is the same tensor
{
    return t.identity && std::any_of(s.tensors.begin(), s.tensors.end(), [&](const TensorSource& other) {
               return &other != &t && other.identity == t.identity;
           });
}
inline bool filled(const Slots& slots, const std::string& name) // "gate" finds "gate" and "gate x 8"
{
    const auto found = slots.lower_bound(name);
    return found != slots.end() && (*found == name || found->compare(0, name.size() + 1, name + " ") == 0);
}
inline const char* norm_name(const Config& c) { return c.norm == transformer::NormKind::rms ? "RMSNorm" : "LayerNorm"; }

// ---- Kinds of blocks ------------------------------------------------------------------------------------------------

struct SubLayer {
    std::string name;                                          // of its norm slots: attn, cross or ffn
    std::string title;
    std::vector<std::string> facts;
    bool pre = false, post = false, out = false;               // norm slots: x = out(x + post(f(pre(x))))
};
struct BlockKind {                                             // layers of a stack that have the same slots
    std::vector<std::pair<uint32_t, uint32_t>> ranges;         // first and last, from 1
    uint32_t n_layers = 0;
    Slots slots;
    bool one_norm = false;                                     // both branches of a parallel block read the same norm
    bool one_set = false;                                      // all these layers are one set of weights
    std::map<std::string, uint64_t> parameters;                // of one layer by part; the sums:
    uint64_t total = 0, active = 0;                            // active: with the chosen experts only
    std::vector<SubLayer> sub_layers;

    bool has(const std::string& slot) const { return filled(slots, slot); }
    uint64_t part(const char* name) const
    {
        const auto found = parameters.find(name);
        return found == parameters.end() ? 0 : found->second;
    }
};
inline const Config& config_of(const Source& s, uint32_t stack) { return stack ? s.encoder : s.main; }
inline const TensorSource* find_tensor(const Source& s, uint32_t stack, Role role) // of the stack itself
{
    for (const TensorSource& t : s.tensors)
        if (t.stack == stack && !t.layer && t.role == static_cast<uint8_t>(role)) return &t;
    return nullptr;
}

// "all", "none" or "21 of 42 layers": those of this kind that have the flag.
inline std::string layers_text(const Source& s, uint32_t stack, const BlockKind& kind, uint8_t flag)
{
    const TensorSource* t = find_tensor(s, stack, Role::layer_flags);
    std::vector<float> flags(config_of(s, stack).n_layers, static_cast<float>(transformer::layer_local));
    if (t && t->cols == flags.size()) t->read(0, 0, 1, flags.data());
    uint32_t n = 0;
    for (const auto& [first, last] : kind.ranges)
        for (uint32_t i = first - 1; i < last; i++) n += (static_cast<uint32_t>(flags[i]) & flag) != 0;
    return n == 0 ? "none" : n == kind.n_layers ? "all" : format("%u of %u layers", n, kind.n_layers);
}

inline std::string heads_text(const Config& c)
{
    const std::string heads = counted(c.n_heads, "head");
    if (c.kv_lora_rank) return heads + format(" of %u + %u", c.nope_head_dim, c.rope_dim);
    return heads + format(" of %u", c.head_dim) +
           (c.n_kv_heads == c.n_heads ? "" : format(", %u of keys and values", c.n_kv_heads));
}
inline SubLayer attention_of(const Source& s, uint32_t stack, const BlockKind& kind)
{
    const Config& c = config_of(s, stack);
    SubLayer a;
    a.name = "attn";
    const auto say = [&](const std::string& fact) { a.facts.push_back(fact); };
    const auto in = [&](const std::string& layers) { return layers == "all" ? "" : " in " + layers; };
    say(heads_text(c));
    if (c.kv_lora_rank) {
        a.title = "multi-head latent attention";
        say("keys and values from a latent of " + digits(c.kv_lora_rank));
        if (c.q_lora_rank) say("queries from one of " + digits(c.q_lora_rank));
    } else {
        a.title = c.n_kv_heads == c.n_heads ? "multi-head attention"
                  : c.n_kv_heads == 1       ? "multi-query attention"
                                            : "grouped-query attention";
    }
    const std::string without = layers_text(s, stack, kind, transformer::layer_no_rope);
    if (c.rope_dim && without == "all") {
        say("no positions");
    } else if (c.rope_dim) {
        const double theta = static_cast<double>(c.rope_theta);
        std::string rope = "RoPE";
        if (c.rope_dim < c.head_dim) rope += format(" on %u", c.rope_dim);
        if (c.rope_dim < c.head_dim && !c.kv_lora_rank) rope += format(" of %u", c.head_dim);
        const bool whole = theta == std::floor(theta) && theta < 1e12;
        rope += ", theta " + (whole ? digits(static_cast<uint64_t>(theta)) : format("%g", theta));
        say(rope + (without == "none" ? "" : ", not in " + without));
    }
    if (find_tensor(s, stack, Role::alibi_slopes)) say("ALiBi");
    if (kind.has("relative_bias")) say("relative bias");
    if (kind.has("rel_key") || kind.has("rel_query")) say("relative positions as keys and queries");
    if (kind.has("q_norm"))
        say(std::string(c.flags & transformer::flag_qk_norm_layer ? "LayerNorm" : "RMSNorm") + " on q and k");
    if (kind.has("sinks")) say("sinks");
    const std::string local = layers_text(s, stack, kind, transformer::layer_local);
    if (c.window && local != "none")
        say("window of " + digits(c.window) +
            (c.window_ahead ? " and " + digits(c.window_ahead) + " ahead" : std::string()) + in(local));
    if (c.chunk && local != "none") say("chunks of " + digits(c.chunk) + in(local));
    if (c.attn_softcap != 0.0f) say(format("soft-cap %g", static_cast<double>(c.attn_softcap)));
    if (kind.has("wq.b") || kind.has("wo.b")) say(kind.has("wo.b") ? "biases" : "biases on q, k and v");
    say(transformer::is_causal(c) ? "causal" : "both ways");
    return a;
}
inline SubLayer cross_of(const Config& c, const BlockKind& kind)
{
    SubLayer a;
    a.name = "cross";
    a.title = "cross attention";
    a.facts = {heads_text(c), "over the encoder's output"};
    if (kind.has("cross_wq.b")) a.facts.push_back("biases");
    return a;
}
inline const char* activation_name(transformer::Activation a)
{
    static const char* const names[] = {"silu",       "gelu",           "gelu_tanh", "relu",    "relu_squared",
                                        "quick_gelu", "clamped_swiglu", "tanh",      "identity"};
    return names[static_cast<size_t>(a)];
}
inline const char* glu_name(transformer::Activation a)         // of silu(gate x) * up x and its relatives
{
    using transformer::Activation;
    return a == Activation::silu                                                                ? "SwiGLU"
           : a == Activation::clamped_swiglu                                                    ? "clamped SwiGLU"
           : a == Activation::relu                                                              ? "ReGLU"
           : a == Activation::gelu || a == Activation::gelu_tanh || a == Activation::quick_gelu ? "GEGLU"
                                                                                                : "gated";
}
inline SubLayer feed_forward_of(const Config& c, const BlockKind& kind)
{
    SubLayer f;
    f.name = "ffn";
    const bool routed = kind.has("router"), gated = kind.has("gate");
    const uint32_t hidden = routed || !c.dense_hidden_dim ? c.hidden_dim : c.dense_hidden_dim;
    const std::string shape = digits(c.dim) + " -> " + digits(hidden) + " -> " + digits(c.dim),
                      act = activation_name(c.activation);
    f.title = routed  ? "mixture of experts"
              : gated ? glu_name(c.activation) + std::string(" feed-forward")
                      : "feed-forward";
    if (routed)
        f.facts.push_back(format("%u of %u experts", c.n_experts_active, c.n_experts) +
                          (gated ? ", " + std::string(glu_name(c.activation)) : ""));
    f.facts.push_back(shape);
    f.facts.push_back(gated ? "down(" + act + "(gate x) * up x)" : "down(" + act + "(up x))");
    if (kind.has("shared_up")) f.facts.push_back("a shared expert of " + digits(c.shared_hidden_dim));
    if (routed && c.n_groups > 1) f.facts.push_back(format("chosen in %u of %u groups", c.n_groups_active, c.n_groups));
    if (kind.has("up.b")) f.facts.push_back("biases");
    return f;
}

inline std::vector<BlockKind> kinds_of(const Source& source, uint32_t stack)
{
    struct One {                                               // layer
        BlockKind kind;
        std::set<uint64_t> seen;
        uint64_t wq = 0, attn_norm = 0, ffn_norm = 0;          // identities
    };
    const Config& c = config_of(source, stack);
    const std::set<uint64_t> constants = constant_norms(source);
    std::vector<One> layers(c.n_layers);
    for (const TensorSource& t : source.tensors) {
        if (t.stack != stack || !t.layer || t.layer > layers.size()) continue;
        One& l = layers[t.layer - 1];
        l.kind.slots.insert(role_text(t));
        if (t.role == static_cast<uint8_t>(Role::wq)) l.wq = t.identity;
        if (t.role == static_cast<uint8_t>(Role::attn_norm_pre)) l.attn_norm = t.identity;
        if (t.role == static_cast<uint8_t>(Role::ffn_norm_pre)) l.ffn_norm = t.identity;
        const std::string part = part_of(t);
        if (part == "tables" || constants.count(t.identity) || (t.identity && !l.seen.insert(t.identity).second))
            continue;
        l.kind.parameters[part] += elements(t);
        l.kind.total += elements(t);
        l.kind.active += part == "experts" ? elements(t) / t.count * c.n_experts_active : elements(t);
    }
    std::vector<One> kinds;
    for (uint32_t i = 1; i <= layers.size(); i++) {
        One& l = layers[i - 1];
        const auto same =
            std::find_if(kinds.begin(), kinds.end(), [&](const One& k) { return k.kind.slots == l.kind.slots; });
        One& k = same == kinds.end() ? kinds.emplace_back(l) : *same;
        k.kind.one_set = k.wq && k.wq == l.wq && (k.kind.one_set || k.kind.n_layers == 1);
        k.kind.one_norm = k.attn_norm && k.attn_norm == k.ffn_norm && !constants.count(k.attn_norm);
        k.kind.n_layers++;
        if (k.kind.ranges.empty() || k.kind.ranges.back().second + 1 != i) k.kind.ranges.push_back({i, i});
        k.kind.ranges.back().second = i;
    }
    std::vector<BlockKind> out;
    for (One& k : kinds) {
        k.kind.sub_layers.push_back(attention_of(source, stack, k.kind));
        if (k.kind.has("cross_wq")) k.kind.sub_layers.push_back(cross_of(c, k.kind));
        k.kind.sub_layers.push_back(feed_forward_of(c, k.kind));
        for (SubLayer& s : k.kind.sub_layers) {
            s.pre = k.kind.has(s.name + "_norm_pre");
            s.post = k.kind.has(s.name + "_norm_post");
            s.out = k.kind.has(s.name + "_norm_out");
        }
        out.push_back(std::move(k.kind));
    }
    return out;
}
// Facts in lines of at most `columns`: none is broken that fits into one.
inline std::vector<std::string> packed(const std::vector<std::string>& facts, size_t columns)
{
    std::vector<std::string> lines;
    for (const std::string& fact : facts) {
        if (!lines.empty() && lines.back().size() + 2 + fact.size() <= columns)
            lines.back() += ", " + fact;
        else
            for (const std::string& line : wrapped(fact, columns)) lines.push_back(line);
    }
    return lines;
}
inline std::string ranges_text(const BlockKind& k)             // "block 1", "blocks 1 to 3, 5, 7 to 9"
{
    std::string out = k.n_layers == 1 ? "block " : "blocks ";
    for (size_t i = 0; i < k.ranges.size(); i++) {
        const auto [first, last] = k.ranges[i];
        if (i == 6 && k.ranges.size() > 8)
            return out + format(" and so on to %u, %u in all", k.ranges.back().second, k.n_layers);
        out += (i ? ", " : "") + (first == last ? std::to_string(first) : format("%u to %u", first, last));
    }
    return out;
}
inline bool parallel(const Config& c) { return (c.flags & transformer::flag_parallel) != 0; }

// ---- In text --------------------------------------------------------------------------------------------------------

// Top to bottom: the stream x on the left, what a branch does to its copy on the right, the sum, a norm of the sum.
inline std::string draw(const Config& c, const BlockKind& kind)
{
    std::string out = "    x --+\n";
    for (const SubLayer& s : kind.sub_layers) {
        const bool first = &s == &kind.sub_layers.front(), last = &s == &kind.sub_layers.back();
        const auto norm = [&](const char* slot) { return s.name + "_norm." + slot + ": " + norm_name(c); };
        if (!first) out += parallel(c) ? "    |   +  parallel: the feed-forward reads the same x\n" : "    |---+\n";
        if (s.pre) out += "    |   |  " + norm("pre") + (kind.one_norm && !first ? ", the same one" : "") + "\n";
        std::vector<std::string> facts = s.facts;
        facts[0] = s.title + ": " + facts[0];
        const std::vector<std::string> lines = packed(facts, 85);
        for (size_t i = 0; i < lines.size(); i++)
            out += (i ? "    |   |    " : "    |   |  ") + lines[i] + (i + 1 < lines.size() ? ",\n" : "\n");
        if (s.post) out += "    |   |  " + norm("post") + "\n";
        if (last || !parallel(c)) out += "    + <-+\n";
        if (s.out) out += "    |      " + norm("out") + "\n";
    }
    return out;
}

constexpr const char* block_parts[] = {"attention",     "cross_attention", "feed_forward", "experts",
                                       "shared_expert", "router",          "norms"};
inline std::string part_text(const std::string& name)
{
    return name == "feed_forward" ? "feed-forward" : replaced(name, '_', " ");
}

// Its parameters by part, and the rule of thumb that a block has 12 d^2 of them: 4 in attention, 8 in the feed-forward.
inline std::string cost_text(const Config& c, const BlockKind& k)
{
    std::string sum;
    for (const char* name : block_parts)
        if (k.part(name)) sum += (sum.empty() ? "" : " + ") + part_text(name) + " " + digits(k.part(name));
    const double square = static_cast<double>(c.dim) * c.dim;
    const auto squares = [&](uint64_t n) { return format("%.2f", static_cast<double>(n) / square); };
    sum += " = " + digits(k.total) + (k.one_set && k.n_layers > 1 ? ", one set for all of them" : "");
    std::string rule =
        format("12 d^2 = %s; here %s d^2", digits(uint64_t{12} * c.dim * c.dim).c_str(), squares(k.total).c_str());
    if (k.active != k.total) rule += " (" + squares(k.active) + " for a token)";
    rule += ": attention " + squares(k.part("attention")) + " (rule: 4)";
    if (k.part("cross_attention")) rule += ", cross attention " + squares(k.part("cross_attention")) + " (rule: none)";
    rule += ", feed-forward " +
            squares(k.part("feed_forward") + k.part("experts") + k.part("shared_expert") + k.part("router")) +
            " (rule: 8)";
    std::string out;
    for (const std::string& text : {sum, rule})
        for (const std::string& line : wrapped(text, 96)) out += "    " + line + "\n";
    return out;
}

inline std::string stack_text(const Source& s, uint32_t stack)
{
    const Config& c = config_of(s, stack);
    std::string head =
        format("%s: d = %s, ", !stack && transformer::is_causal(c) ? "decoder" : "encoder", digits(c.dim).c_str());
    head += counted(c.n_layers, "block") + ", " + heads_text(c) + ", feed-forward of " + digits(c.hidden_dim);
    if (c.vocab_size) head += ", vocabulary of " + digits(c.vocab_size);
    if (c.max_seq_len) head += ", trained for " + digits(c.max_seq_len) + " positions";
    std::map<std::pair<uint8_t, uint8_t>, std::string> sorted; // by role, a bias behind its weight
    std::set<uint64_t> seen;
    for (const TensorSource& t : s.tensors) {
        const bool again = t.identity && !seen.insert(t.identity).second;
        const std::string shape = " (" + digits(t.rows) + " x " + digits(t.cols) + (again ? ", tied)" : ")");
        if (t.stack == stack && !t.layer) sorted[{t.role & 0x7f, t.role >> 7}] = role_text(t) + shape;
    }
    std::vector<std::string> whole;
    for (const auto& [role, text] : sorted) whole.push_back(text);
    std::string out;
    for (const std::string& line : wrapped(head, 100)) out += (out.empty() ? "" : "    ") + line + "\n";
    const std::vector<std::string> lines = packed(whole, 96);
    for (const std::string& line : lines) out += "  " + line + (&line == &lines.back() ? "\n" : ",\n");
    for (const BlockKind& k : kinds_of(s, stack)) out += "  " + ranges_text(k) + "\n" + draw(c, k) + cost_text(c, k);
    return out;
}
inline std::string json_blocks(const Source& s, uint32_t stack)
{
    const auto list = [](const std::vector<std::string>& items) { return "[" + joined(items, ", ") + "]"; };
    std::vector<std::string> out;
    for (const BlockKind& k : kinds_of(s, stack)) {
        std::vector<std::string> slots, ranges, sub_layers;
        for (const std::string& slot : k.slots) slots.push_back(json_text(slot));
        for (const auto& [first, last] : k.ranges) ranges.push_back(format("[%u, %u]", first, last));
        for (const SubLayer& sub : k.sub_layers)
            sub_layers.push_back(json_text(sub.title + ": " + joined(sub.facts, ", ")));
        JsonObject one;
        one.add("first", uint64_t{k.ranges.front().first})
            .add("last", uint64_t{k.ranges.back().second})
            .add("n_layers", uint64_t{k.n_layers});
        one.raw("ranges", list(ranges))
            .raw("slots", list(slots))
            .raw("sub_layers", list(sub_layers))
            .add("parameters_by_part", k.parameters);
        one.add("parameters", k.total)
            .add("active_parameters", k.active)
            .add("rule_12_d2", uint64_t{12} * config_of(s, stack).dim * config_of(s, stack).dim);
        out.push_back(one.text());
    }
    return list(out);
}

// ---- The whole model ------------------------------------------------------------------------------------------------

struct About {
    std::string name;
    const Source& source;
    Counts counts;
    WriteOptions write;
    transformer::Options session;
    bool weights = true;                                       // false: a configuration alone
};
// A config.json, or a folder that has one and no weights that are read.
inline bool is_configuration(const std::string& path)
{
    if (is_directory(path)) {
        std::error_code error;
        for (std::filesystem::directory_iterator i(path, error), end; !error && i != end; i.increment(error)) {
            const std::string name = i->path().filename().string();
            if (name.size() > 12 && name.find(".safetensors", name.size() - 12) != std::string::npos) return false;
            if (name == "model.safetensors.index.json") return false;
        }
        return is_file(join(path, "config.json"));
    }
    if (!is_file(path)) return false;
    std::ifstream stream(path, std::ios::binary);
    return (stream >> std::ws).peek() == '{';
}

inline uint64_t size_as(const About& a, DType type)            // of a checkpoint
{
    WriteOptions o;
    o.convert = true;
    o.type = type;
    return checkpoint_size(a.source, o);
}
inline std::string info_json(const About& a)
{
    const Source& s = a.source;
    const transformer::Plan plan = transformer::plan(s.main, s.encoder, a.session);
    const uint64_t session = plan.at[transformer::n_regions];
    JsonObject json, sizes;
    json.add("kind", s.kind).raw("config", config_json(s.main)).raw("blocks", json_blocks(s, 0));
    if (s.encoder.n_layers) json.raw("encoder", config_json(s.encoder)).raw("encoder_blocks", json_blocks(s, 1));
    json.add("parameters", a.counts.parameters)
        .add("active_parameters", a.counts.active)
        .add("parameters_by_part", a.counts.parts);
    json.raw("has_weights", a.weights ? "true" : "false");
    if (a.weights) json.add("weights_bytes", checkpoint_size(s, a.write)).add("bytes_by_type", a.counts.types);
    for (const DType type : {DType::f32, DType::f16, DType::q8_0, DType::q4_0})
        sizes.add(type_name(type), size_as(a, type));
    json.raw("checkpoint_bytes", sizes.text()).add("bytes_per_token", a.counts.bytes_per_token);
    json.add("vocabulary_tokens", uint64_t{s.vocabulary.tokens.size()})
        .add("context", uint64_t{a.session.capacity})
        .add("kv", type_name(a.session.cache));
    json.add("kv_cache_bytes_per_token", cache_bytes_per_token(s.main, a.session.cache))
        .add("kv_cache_bytes", plan.at[transformer::region_end] - plan.at[transformer::region_cache]);
    return json.add("session_bytes", session).text() + "\n";
}
inline std::string heading(const std::string& name, const std::string& words)
{
    const std::string first = printable(name, 1000) + ":";
    return first + (first.size() + 1 + words.size() > 100 ? "\n    " : " ") + words + "\n";
}
inline std::string info_text(const About& a)
{
    const Source& s = a.source;
    const transformer::Plan plan = transformer::plan(s.main, s.encoder, a.session);
    const uint64_t session = plan.at[transformer::n_regions], a_token = cache_bytes_per_token(s.main, a.session.cache);
    const uint64_t cache = plan.at[transformer::region_end] - plan.at[transformer::region_cache];
    std::string text = heading(a.name, s.kind + (a.weights ? "" : ", its configuration alone")) + stack_text(s, 0);
    if (s.encoder.n_layers) text += stack_text(s, 1);
    text += "parameters: " + digits(a.counts.parameters);
    if (a.counts.active != a.counts.parameters) text += ", of which a token uses " + digits(a.counts.active);
    text += "\n";
    const double all = static_cast<double>(std::max(a.counts.parameters, uint64_t{1}));
    for (const auto& [name, n] : a.counts.parts)
        text += format("  %-16s %19s  %5.1f %%%s\n", part_text(name).c_str(), digits(n).c_str(),
                       100 * static_cast<double>(n) / all,
                       name == "other" ? "  in no slot: a pooler, the source of a table" : "");
    text += "weights: ";
    if (a.weights) text += bytes_text(checkpoint_size(s, a.write));
    for (const auto& [name, n] : a.counts.types)
        if (a.weights) text += ", " + name + " " + bytes_text(n);
    text += a.weights ? "\n  a checkpoint of it:" : "not here\n  a checkpoint of them:";
    for (const DType type : {DType::f32, DType::f16, DType::q8_0, DType::q4_0})
        text +=
            format("%s %s in %s", type == DType::f32 ? "" : ",", bytes_text(size_as(a, type)).c_str(), type_name(type));
    text += "\ncache: " + digits(a_token) + " bytes a token in " + type_name(a.session.cache) + "; for " +
            digits(a.session.capacity) + " positions " + bytes_text(cache) +
            ", the session with its scratch " + bytes_text(session);
    const size_t tokens = s.vocabulary.tokens.size();
    return text + "\ntokenizer: " + (tokens ? digits(tokens) + " tokens" : std::string("none")) + "\n";
}

}  // namespace weights
#endif
