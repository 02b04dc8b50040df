// weights/review.hpp - a model's block held against today's defaults, and what each change would cost in parameters
//
// "Today" is what most of Llama 3, Qwen 3, Gemma 3, OLMo 2 and DeepSeek-V3 do. Numbers in brackets are the references
// at the top of transformer.hpp. One row of `aspects` is one finding.
#ifndef TRANSFORMER_WEIGHTS_REVIEW_HPP
#define TRANSFORMER_WEIGHTS_REVIEW_HPP

#include "block.hpp"

#include <cmath>

namespace weights {

struct Finding {
    std::string aspect, has, today, why, change;
    bool applies = true, same = false;
    int64_t parameters = 0;                                    // what `change` costs
};

// ---- What is asked of a model ---------------------------------------------------------------------------------------

struct Reviewed {
    const Source& s;
    const Counts& counts;
    const Config& c;                                           // of the main stack
    std::vector<BlockKind> kinds[2];

    Reviewed(const Source& source, const Counts& all) : s(source), counts(all), c(source.main)
    {
        for (const uint32_t stack : {0u, 1u}) kinds[stack] = kinds_of(s, stack);
    }
    bool has(const std::string& slot) const                    // in any block of the main stack
    {
        return std::any_of(kinds[0].begin(), kinds[0].end(), [&](const BlockKind& k) { return k.has(slot); });
    }
    // Elements of the distinct tensors that `wanted` holds for.
    template <class Wanted> int64_t sum(const Wanted& wanted) const
    {
        const std::set<uint64_t> constants = constant_norms(s);
        std::set<uint64_t> seen;
        int64_t n = 0;
        for (const TensorSource& t : s.tensors)
            if (wanted(t, static_cast<Role>(t.role & 0x7f)) && !constants.count(t.identity) &&
                (!t.identity || seen.insert(t.identity).second))
                n += static_cast<int64_t>(elements(t));
        return n;
    }
    static bool is_bias(const TensorSource& t) { return (t.role & transformer::role_bias) != 0; }
    static bool is_norm(const TensorSource& t) { return part_of(t) == std::string("norms"); }
    static bool is_matrix(const TensorSource& t)               // of a block, or the bias of one
    {
        const Role role = static_cast<Role>(t.role & 0x7f);
        return t.layer && !is_norm(t) && part_of(t) != std::string("tables") && role != Role::sinks &&
               role != Role::router && role != Role::shared_router;
    }
    // Values of one layer's row of the cache.
    uint64_t cached() const { return uint64_t{c.n_kv_heads} * (c.head_dim + c.v_head_dim); }
};
inline int64_t signed_of(uint64_t n) { return static_cast<int64_t>(n); }

// ---- The aspects ----------------------------------------------------------------------------------------------------

inline void review_placement(const Reviewed& r, Finding& f)
{
    const bool pre = r.has("ffn_norm_pre"), post = r.has("ffn_norm_post"), out = r.has("ffn_norm_out");
    f.has = out           ? "out: N(x + f(x))"
            : pre && post ? "sandwich: x + N(f(N(x)))"
            : post        ? "post: x + N(f(x))"
            : pre         ? "pre: x + f(N(x))"
                          : "none";
    if (pre && parallel(r.c)) f.has = "pre, parallel: x + a(N(x)) + f(N(x))";
    f.same = pre;
    const auto role_is = [](Role a, Role b) {
        return [=](const TensorSource&, Role role) { return role == a || role == b; };
    };
    if (pre && post) {
        f.change = "without the norms behind f";
        f.parameters = -r.sum(role_is(Role::attn_norm_post, Role::ffn_norm_post));
    } else if (pre) {
        f.change = "with the norm behind the sum, as in 2017, there is no final norm";
        f.parameters = -r.sum(role_is(Role::final_norm, Role::final_norm));
    } else {
        f.change = "the same norms in the other place, and a final norm";
        for (const uint32_t stack : {0u, 1u})
            if (config_of(r.s, stack).n_layers && !find_tensor(r.s, stack, Role::final_norm))
                f.parameters += signed_of(config_of(r.s, stack).dim) *
                                (r.has("ffn_norm_out.b") || r.has("ffn_norm_post.b") ? 2 : 1);
    }
}
inline void review_norm(const Reviewed& r, Finding& f)
{
    const int64_t shifts =
        r.sum([](const TensorSource& t, Role) { return Reviewed::is_norm(t) && Reviewed::is_bias(t); });
    const int64_t gains =
        r.sum([](const TensorSource& t, Role) { return Reviewed::is_norm(t) && !Reviewed::is_bias(t); });
    f.same = r.c.norm == transformer::NormKind::rms;
    f.has = norm_name(r.c);
    if (!gains) f.has += " without weights";
    else if (!f.same) f.has += shifts ? ", with shifts" : ", without shifts";
    f.change = f.same ? "with LayerNorm and its shifts" : shifts ? "without the shifts" : "the same weights";
    f.parameters = f.same ? gains - shifts : -shifts;
}
inline void review_positions(const Reviewed& r, Finding& f)
{
    const Config& c = r.c;
    const int64_t table = r.sum([](const TensorSource&, Role role) { return role == Role::position_embedding; });
    const auto other = r.counts.parts.find("other");
    f.same = c.rope_dim != 0;
    f.change = "without what it has now";
    if (f.same) {
        f.has = c.rope_dim < c.head_dim && !c.kv_lora_rank ? format("RoPE on %u of %u values", c.rope_dim, c.head_dim)
                                                           : std::string("RoPE");
        f.change = "a learned table of " + digits(c.max_seq_len) + " positions in its place";
        f.parameters = signed_of(c.max_seq_len) * c.dim;
    } else if (r.has("relative_bias") || r.has("rel_key") || r.has("rel_query")) {
        f.has = r.has("relative_bias") ? "relative bias" : "relative keys and queries [15]";
        if (other != r.counts.parts.end()) f.parameters = -signed_of(other->second); // no slot keeps its embedding
    } else if (find_tensor(r.s, 0, Role::alibi_slopes)) {
        f.has = "ALiBi [13]";
    } else if (table) {
        f.has = "table of " + digits(c.max_seq_len);
        f.parameters = -table;
    } else {
        f.has = c.flags & transformer::flag_sinusoidal ? "sinusoids, added once [1]" : "none";
    }
}
inline void review_sharing(const Reviewed& r, Finding& f)
{
    const Config& c = r.c;
    const uint32_t h = c.n_heads, k = c.n_kv_heads;
    const auto cache = [](double times) { return format(", a cache %.3g times as large", times); };
    if (c.kv_lora_rank) {
        f.has = "MLA: a latent of " + digits(c.kv_lora_rank) + format(" + %u", c.rope_dim);
        f.same = true;
        const uint64_t q = uint64_t{c.nope_head_dim} + c.rope_dim, width = h * (2 * q + c.mla_v_head_dim);
        const int64_t now = r.sum([](const TensorSource&, Role role) {
            return role == Role::wq || role == Role::wq_a || role == Role::q_a_norm || role == Role::wkv_a ||
                   role == Role::kv_a_norm || role == Role::wk_b || role == Role::wv_b;
        });
        f.change = format("with keys and values for each of %u heads", h) +
                   cache(static_cast<double>(h * (q + c.mla_v_head_dim)) / static_cast<double>(r.cached()));
        f.parameters = signed_of(width * c.dim * c.n_layers) - now;
        return;
    }
    f.has = k == h ? format("MHA: %u heads of keys", h)
                   : format("%s: %u heads of keys for %u", k == 1 ? "MQA" : "GQA", k, h);
    f.same = k < h || !transformer::is_causal(c);
    if (!transformer::is_causal(c)) {
        f.today = "MHA: there is no cache";
        f.why = "an encoder reads all at once and keeps no cache, so sharing heads saves parameters only [10]";
    }
    const uint32_t fewer = h > 8 && h % 8 == 0 ? 8 : h % 4 == 0 ? h / 4 : 1, to = k < h ? h : fewer;
    const int64_t keys = r.sum([&](const TensorSource& t, Role role) {
        return t.stack == 0 &&
               (role == Role::wk || role == Role::wv || (role == Role::k_norm && elements(t) > c.head_dim));
    });
    f.change = k < h ? "with keys and values for each head" : "with " + counted(to, "head") + " of keys and values";
    if (transformer::is_causal(c)) f.change += cache(static_cast<double>(to) / k);
    f.parameters = keys / k * to - keys;
}
inline void review_feed_forward(const Reviewed& r, Finding& f)
{
    const Config& c = r.c;
    f.same = r.has("gate");
    f.has = f.same ? glu_name(c.activation) : std::string("plain, ") + activation_name(c.activation);
    if (c.n_experts)
        f.has += format(", %u of %u experts", c.n_experts_active, c.n_experts) +
                 (c.shared_hidden_dim ? " and a shared one" : "");
    f.change =
        f.same ? "without the gate at the same width" : "a gate at the same width; none if the width is cut to 2/3";
    const int64_t gate = r.sum([&](const TensorSource&, Role role) {
        return f.same ? role == Role::gate || role == Role::shared_gate : role == Role::up || role == Role::shared_up;
    });
    f.parameters = f.same ? -gate : gate;
}
inline void review_expansion(const Reviewed& r, Finding& f)
{
    const Config& c = r.c;
    const bool gated = r.has("gate");
    const double d = c.dim, low = gated ? 8.0 / 3 : 4, high = 4;
    if (c.n_experts) {
        const uint64_t width = uint64_t{c.n_experts_active} * c.hidden_dim + c.shared_hidden_dim;
        f.has = digits(c.hidden_dim) + format(" an expert, %.3g d for a token", static_cast<double>(width) / d);
        f.today = "many small experts";
        f.why = "more parameters at the same arithmetic for a token [12]; many small experts choose more finely than a "
                "few large ones [11]";
        f.change = "one expert more";
        f.parameters =
            r.sum([](const TensorSource& t, Role) { return part_of(t) == std::string("experts"); }) / c.n_experts +
            r.sum([](const TensorSource&, Role role) { return role == Role::router; }) / c.n_experts;
        f.same = true;
        return;
    }
    const double ratio = c.hidden_dim / d;
    f.has = digits(c.hidden_dim) + format(" = %.3g d", ratio);
    f.today = gated ? "8/3 to 4 d with a gate" : "4 d without a gate";
    f.same = ratio > low - 0.17 && ratio <= high;              // widths are rounded to what the hardware likes
    const double target = f.same ? ratio + 1 : ratio < low ? low : high;
    f.change = f.same ? "one d wider"
                      : format("%s = %.3g d", digits(static_cast<uint64_t>(std::lround(target * d))).c_str(), target);
    for (const uint32_t stack : {0u, 1u}) {
        const Config& one = config_of(r.s, stack);
        const int64_t all = r.sum([&](const TensorSource& t, Role role) {
            return t.stack == stack &&
                   (role == Role::gate || role == Role::up || (role == Role::down && !Reviewed::is_bias(t)));
        });
        if (one.n_layers && one.hidden_dim)
            f.parameters += all / one.hidden_dim * (std::lround(target * d) - signed_of(c.hidden_dim));
    }
}
inline void review_biases(const Reviewed& r, Finding& f)
{
    const int64_t biases =
        r.sum([](const TensorSource& t, Role) { return Reviewed::is_matrix(t) && Reviewed::is_bias(t); });
    const bool others = r.has("wo.b") || r.has("up.b") || r.has("down.b") || r.has("cross_wq.b");
    f.has = !biases                          ? "none"
            : !others                        ? "on q, k and v"
            : r.has("wq.b") && r.has("up.b") ? "everywhere"
                                             : "on some matrices";
    f.same = !others;
    f.change = biases ? "without them" : "one for each matrix";
    f.parameters = -biases;
    std::set<uint64_t> seen;
    for (const TensorSource& t : r.s.tensors)
        if (!biases && Reviewed::is_matrix(t) && (!t.identity || seen.insert(t.identity).second))
            f.parameters += signed_of(t.rows) * t.count;
}
inline void review_head(const Reviewed& r, Finding& f)
{
    const TensorSource* head = find_tensor(r.s, 0, Role::lm_head);
    f.applies = head && r.c.n_outputs == r.c.vocab_size;
    if (!f.applies) return;
    const bool tied = is_tied(r.s, *head);
    const double size = static_cast<double>(elements(*head)),
                 rest = static_cast<double>(r.counts.parameters) - (tied ? 0 : size);
    const double share = 100 * size / rest;                    // of the model with one matrix
    f.has = tied ? "tied to the embedding" : "a matrix of its own";
    f.today = share > 9 ? format("tied: it is %.2g %% of all", share) : format("its own: only %.2g %% of all", share);
    f.same = tied == (share > 9);
    f.change = tied ? "a matrix of its own" : "tied to the embedding";
    f.parameters = signed_of(elements(*head)) * (tied ? 1 : -1);
}
inline void review_qk_norm(const Reviewed& r, Finding& f)
{
    const Config& c = r.c;
    const bool norms = r.has("q_norm"), latents = r.has("kv_a_norm");
    f.same = norms || latents;
    f.has = norms     ? std::string(c.flags & transformer::flag_qk_norm_layer ? "LayerNorm" : "RMSNorm") + " on q and k"
            : latents ? "RMSNorm on the latents"
                      : "none";
    f.change = f.same ? "without them" : "a gain for each value of a head, of q and of k";
    f.parameters = -r.sum([](const TensorSource&, Role role) {
        return role == Role::q_norm || role == Role::k_norm || role == Role::q_a_norm || role == Role::kv_a_norm;
    });
    for (const Config* one : {&c, &r.s.encoder})
        if (!f.same) f.parameters += signed_of(2) * one->head_dim * one->n_layers;
}

struct Aspect {
    const char *name, *today, *why;
    void (*look)(const Reviewed&, Finding&);                   // may say another `today` and `why`
};
inline const Aspect aspects[] = {
    {"norm placement", "pre: x + f(N(x))",
     "the residual stream stays a plain sum, so deep stacks train without warm-up [6]; a second norm behind f tames "
     "large activations [7]",
     review_placement},
    {"norm kind", "RMSNorm",
     "no mean and no shift: one pass less over each row, and no loss seen against LayerNorm [2] [3]", review_norm},
    {"positions", "RoPE",
     "relative, nothing to learn, in every layer; it stretches to longer texts by turning slower [5]",
     review_positions},
    {"attention", "GQA with 8 heads of keys, or MLA",
     "each new token reads the whole cache: fewer heads of keys, fewer bytes, nearly the same quality [9] [10]; a "
     "latent keeps less still [11]",
     review_sharing},
    {"feed-forward", "SwiGLU or GEGLU", "better than ReLU or GELU at equal parameters and equal arithmetic [4]",
     review_feed_forward},
    {"its width", "",
     "a gate makes three matrices of two: 8/3 d then costs what 4 d did [4]; a wider layer is a shallower model",
     review_expansion},
    {"biases", "none, or on q, k and v", "no use seen in large models, and a tensor less for each matrix [4] [14]",
     review_biases},
    {"head", "",
     "one shared matrix saves much where the vocabulary is a large part of the model [1]; Llama 3.2 and Qwen 3 tie up "
     "to 4 B parameters",
     review_head},
    {"QK-norm", "RMSNorm on q and k",
     "bounds the scores, so that no head saturates in long or low-precision training [8]", review_qk_norm},
};
constexpr std::pair<int, const char*> review_sources[] = {
    {1, "Vaswani et al. 2017"}, {2, "Ba et al. 2016"},       {3, "Zhang & Sennrich 2019"}, {4, "Shazeer 2020"},
    {5, "Su et al. 2021"},      {6, "Xiong et al. 2020"},    {7, "Ding et al. 2021"},      {8, "Henry et al. 2020"},
    {9, "Shazeer 2019"},        {10, "Ainslie et al. 2023"}, {11, "DeepSeek-AI 2024"},     {12, "Shazeer et al. 2017"},
    {13, "Press et al. 2022"},  {14, "Raffel et al. 2020"},  {15, "He et al. 2021"},
};

inline std::vector<Finding> review(const Source& s, const Counts& counts)
{
    const Reviewed r(s, counts);
    std::vector<Finding> out;
    for (const Aspect& a : aspects) {
        Finding f;
        f.aspect = a.name, f.today = a.today, f.why = a.why;
        a.look(r, f);
        if (f.applies) out.push_back(std::move(f));
    }
    return out;
}

// ---- Written down ---------------------------------------------------------------------------------------------------

inline std::string with_sign(int64_t n)
{
    return n == 0 ? "0" : (n < 0 ? "-" : "+") + digits(static_cast<uint64_t>(n < 0 ? -n : n));
}

// Cells of a line, each broken into its column; the last one stands at the right.
inline std::string table_row(const std::vector<std::pair<size_t, std::string>>& cells)
{
    std::vector<std::vector<std::string>> columns;
    size_t height = 1;
    for (const auto& [width, text] : cells) {
        columns.push_back(wrapped(text, width - 1));
        height = std::max(height, columns.back().size());
    }
    std::string out;
    for (size_t i = 0; i < height; i++) {
        std::string line;
        for (size_t k = 0; k < cells.size(); k++) {
            const std::string cell = i < columns[k].size() ? columns[k][i] : "";
            const std::string space(cells[k].first > cell.size() ? cells[k].first - cell.size() : 0, ' ');
            line += k + 1 == cells.size() ? space + cell : cell + space;
        }
        out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return out;
}
inline std::string review_text(const std::string& name, const Source& s, const Counts& counts,
                               const std::vector<Finding>& findings)
{
    std::string text = heading(name, s.kind + ", " + digits(counts.parameters) + " parameters"), cited;
    text += "Today is what most of Llama 3, Qwen 3, Gemma 3, OLMo 2 and DeepSeek-V3 do. The last column: what\nthe "
            "change that is named costs in parameters.\n\n";
    text += table_row({{18, ""}, {34, "this model"}, {30, "today"}, {18, "change costs"}});
    size_t same = 0;
    for (const Finding& f : findings) {
        same += f.same;
        text += table_row(
            {{18, (f.same ? "= " : "x ") + f.aspect}, {34, f.has}, {30, f.today}, {18, with_sign(f.parameters)}});
        for (const std::string& line : wrapped(f.why + ". Change: " + f.change + ".", 82))
            text += std::string(18, ' ') + line + "\n";
        cited += f.has + f.why;
    }
    text += "\n= as today, x differs: " + std::to_string(same) + " of " + std::to_string(findings.size())
        + " as today\n";
    std::string list;
    for (const auto& [number, source] : review_sources)
        if (cited.find(format("[%d]", number)) != std::string::npos)
            list += (list.empty() ? "" : ", ") + format("[%d] %s", number, source);
    for (const std::string& line : wrapped(list, 100)) text += line + "\n";
    return text;
}
inline std::string review_json(const std::string& name, const Source& s, const Counts& counts,
                               const std::vector<Finding>& findings)
{
    std::vector<std::string> list;
    for (const Finding& f : findings) {
        std::vector<int> sources;
        for (const auto& [number, source] : review_sources)
            if ((f.has + f.why).find(format("[%d]", number)) != std::string::npos) sources.push_back(number);
        JsonObject one;
        one.add("aspect", f.aspect)
            .add("has", f.has)
            .add("today", f.today)
            .raw("same", f.same ? "true" : "false")
            .add("why", f.why);
        one.raw("sources", "[" + joined(sources, ", ") + "]")
            .add("change", f.change)
            .raw("parameters", std::to_string(f.parameters));
        list.push_back(one.text());
    }
    JsonObject json;
    json.add("model", name)
        .add("kind", s.kind)
        .add("parameters", counts.parameters)
        .raw("findings", "[" + joined(list, ", ") + "]");
    return json.text() + "\n";
}

}  // namespace weights
#endif
