// tests/reference.hpp - the whole block family once more, in double precision, as slow and plain as the formulas
//
// Written from the meaning of Config and of the slots, not from the runtime: one sequence at once, full score
// matrices, no cache, no batches; latent attention in its expanded form. What the runtime computes in f32 must agree
// within rounding.
#ifndef TRANSFORMER_TESTS_REFERENCE_HPP
#define TRANSFORMER_TESTS_REFERENCE_HPP

#include "helpers.hpp"

#include <algorithm>
#include <cmath>

namespace test {

typedef std::vector<double> Row;
typedef std::vector<Row> Table;                                // (T, n)

struct Sequence {                                              // what goes in: one of tokens, rows, features
    std::vector<int32_t> tokens, types;
    Table rows, features;                                      // features: (mel bins, frames)
    std::vector<uint8_t> mask;
};

class Reference {
public:
    explicit Reference(const TestModel& m) : model(m) {}
    bool interleaved = false;                                  // rotate (x_2i, x_2i+1), not (x_i, x_i + d/2)

    Table run(uint32_t stack, const Sequence& in, const Table* memory = nullptr,
              const std::vector<uint8_t>* memory_mask = nullptr) const
    {
        const Config& c = stack ? model.encoder : model.main;
        Table x = embed(stack, c, in);
        for (uint32_t l = 1; l <= c.n_layers; l++) {
            const Table h = norm(stack, l, Role::attn_norm_pre, x);
            const Table early = norm(stack, l, Role::ffn_norm_pre, x);
            residual(stack, l, x, Role::attn_norm_post, Role::attn_norm_out, attention(stack, c, l, h, in.mask));
            if (c.flags & transformer::flag_cross) {
                const Table a = cross(c, l, norm(stack, l, Role::cross_norm_pre, x), *memory, memory_mask);
                residual(stack, l, x, Role::cross_norm_post, Role::cross_norm_out, a);
            }
            const bool parallel = (c.flags & transformer::flag_parallel) != 0;
            const Table g = parallel ? early : norm(stack, l, Role::ffn_norm_pre, x);
            residual(stack, l, x, Role::ffn_norm_post, Role::ffn_norm_out, feed_forward(stack, c, l, g));
        }
        return norm(stack, 0, Role::final_norm, x);
    }

    // One row for each position; one row where the model pools.
    Table head(Table h, const std::vector<uint8_t>& mask = {}) const
    {
        const Config& c = model.main;
        if (c.pooling == transformer::Pooling::first) h.resize(1);
        if (c.pooling == transformer::Pooling::last) h = {h.back()};
        if (c.pooling == transformer::Pooling::mean) {
            Row sum(c.dim);
            double n = 0;
            for (size_t t = 0; t < h.size(); t++) {
                if (!mask.empty() && !mask[t]) continue;
                n += 1;
                for (uint32_t i = 0; i < c.dim; i++) sum[i] += h[t][i];
            }
            for (double& v : sum) v /= n;
            h = {sum};
        }
        if (model.get(0, 0, Role::head_dense)) {
            h = linear(0, 0, Role::head_dense, h);
            for (Row& row : h)
                for (double& v : row) v = activate(c.head_activation, v);
        }
        h = linear(0, 0, Role::lm_head, norm(0, 0, Role::head_norm, h));
        for (Row& row : h)
            for (double& v : row) {
                v *= static_cast<double>(c.logit_scale);
                if (c.logit_softcap > 0)
                    v = static_cast<double>(c.logit_softcap) * std::tanh(v / static_cast<double>(c.logit_softcap));
            }
        return h;
    }
    std::vector<double> logits(const std::vector<int32_t>& tokens) const
    {
        Sequence in;
        in.tokens = tokens;
        return flat(head(run(0, in)));
    }
    static std::vector<double> flat(const Table& t)
    {
        std::vector<double> out;
        for (const Row& row : t) out.insert(out.end(), row.begin(), row.end());
        return out;
    }

    static double activate(Activation kind, double x)
    {
        switch (kind) {
        case Activation::silu: return x / (1 + std::exp(-x));
        case Activation::gelu: return x / 2 * (1 + std::erf(x / std::sqrt(2.0)));
        case Activation::gelu_tanh:
            return x / 2 * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
        case Activation::relu: return std::max(x, 0.0);
        case Activation::relu_squared: return std::max(x, 0.0) * std::max(x, 0.0);
        case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
        case Activation::tanh: return std::tanh(x);
        default: return x;
        }
    }

private:
    const TestModel& model;

    Table linear(uint32_t stack, uint32_t layer, Role role, const Table& x, uint32_t matrix = 0) const
    {
        const Weights& w = *model.get(stack, layer, role);
        const Weights* const b = model.get(stack, layer, role, true);
        Table y(x.size(), Row(w.rows));
        for (size_t t = 0; t < x.size(); t++)
            for (uint32_t r = 0; r < w.rows; r++) {
                double sum = b ? static_cast<double>(b->at(matrix, 0, r)) : 0.0;
                for (uint32_t i = 0; i < w.cols; i++) sum += static_cast<double>(w.at(matrix, r, i)) * x[t][i];
                y[t][r] = sum;
            }
        return y;
    }

    // n values from x on, with row `row` of the weight if it has several.
    static void norm_row(NormKind kind, double eps, const Weights& w, const Weights* b, uint32_t row, double* x,
                         size_t n)
    {
        double mean = 0, square = 0;
        for (size_t i = 0; i < n; i++) mean += x[i] / static_cast<double>(n);
        if (kind == NormKind::rms) mean = 0;
        for (size_t i = 0; i < n; i++) square += (x[i] - mean) * (x[i] - mean) / static_cast<double>(n);
        for (size_t i = 0; i < n; i++) {
            x[i] =
                (x[i] - mean) / std::sqrt(square + eps) * static_cast<double>(w.at(0, row, static_cast<uint32_t>(i)));
            if (b) x[i] += static_cast<double>(b->at(0, row, static_cast<uint32_t>(i)));
        }
    }
    Table norm(uint32_t stack, uint32_t layer, Role role, Table x) const
    {
        const Config& c = stack ? model.encoder : model.main;
        const Weights* const w = model.get(stack, layer, role);
        for (Row& row : x)
            if (w)
                norm_row(c.norm, static_cast<double>(c.norm_eps), *w, model.get(stack, layer, role, true), 0,
                         row.data(), row.size());
        return x;
    }
    void residual(uint32_t stack, uint32_t layer, Table& x, Role post, Role out, Table y) const
    {
        y = norm(stack, layer, post, y);
        const double scale = static_cast<double>((stack ? model.encoder : model.main).residual_scale);
        for (size_t t = 0; t < x.size(); t++)
            for (size_t i = 0; i < x[t].size(); i++) x[t][i] += scale * y[t][i];
        x = norm(stack, layer, out, x);
    }

    Table embed(uint32_t stack, const Config& c, const Sequence& in) const
    {
        if (!in.rows.empty()) return in.rows;
        Table x;
        if (!in.features.empty())
            x = convolve(stack, Role::conv2, convolve(stack, Role::conv1, transposed(in.features), 1), 2);
        for (const int32_t id : in.tokens) {
            Row row(c.embedding_dim);
            for (uint32_t i = 0; i < c.embedding_dim; i++)
                row[i] = static_cast<double>(c.embedding_scale) *
                         static_cast<double>(
                             model.get(stack, 0, Role::token_embedding)->at(0, static_cast<uint32_t>(id), i));
            x.push_back(row);
        }
        const Weights* const positions = model.get(stack, 0, Role::position_embedding);
        const Weights* const types = model.get(stack, 0, Role::type_embedding);
        const Weights* const gain = model.get(stack, 0, Role::embedding_norm);
        const auto add_positions = [&] {
            for (size_t t = 0; t < x.size(); t++)
                for (uint32_t i = 0; i < positions->cols; i++)
                    x[t][i] += static_cast<double>(positions->at(0, static_cast<uint32_t>(t), i));
        };
        const size_t width = x.empty() ? 0 : x[0].size();
        if (positions && positions->cols == width) add_positions();
        for (size_t t = 0; t < x.size(); t++) {
            for (uint32_t i = 0; types && i < width; i++)
                x[t][i] +=
                    static_cast<double>(types->at(0, in.types.empty() ? 0 : static_cast<uint32_t>(in.types[t]), i));
            for (size_t i = 0; c.flags & transformer::flag_sinusoidal && i < width / 2 * 2; i++) { // whole pairs
                const double angle = static_cast<double>(t) /
                                     std::pow(10000.0, static_cast<double>(i / 2 * 2) / static_cast<double>(width));
                x[t][i] += i % 2 ? std::cos(angle) : std::sin(angle);
            }
        }
        const bool first = gain && gain->cols == width;
        if (first) x = norm(stack, 0, Role::embedding_norm, x);
        if (model.get(stack, 0, Role::embedding_proj)) x = linear(stack, 0, Role::embedding_proj, x);
        if (positions && positions->cols != width) add_positions();
        return first ? x : norm(stack, 0, Role::embedding_norm, x);
    }
    static Table transposed(const Table& a)
    {
        Table b(a[0].size(), Row(a.size()));
        for (size_t i = 0; i < a.size(); i++)
            for (size_t j = 0; j < a[i].size(); j++) b[j][i] = a[i][j];
        return b;
    }
    // Width 3, one step of padding; the weight of tap k of channel i stands in column k * channels + i.
    Table convolve(uint32_t stack, Role role, const Table& x, size_t stride) const
    {
        Table gathered;
        for (size_t t = 0; t < x.size() / stride; t++) {
            Row row;
            for (size_t tap = 0; tap < 3; tap++) {
                const size_t from = t * stride + tap;          // one more than the place
                if (from == 0 || from > x.size()) row.insert(row.end(), x[0].size(), 0.0);
                else row.insert(row.end(), x[from - 1].begin(), x[from - 1].end());
            }
            gathered.push_back(row);
        }
        Table y = linear(stack, 0, role, gathered);
        for (Row& row : y)
            for (double& v : row) v = activate(Activation::gelu, v);
        return y;
    }

    uint8_t layer_flags(uint32_t stack, uint32_t l) const
    {
        const Weights* const flags = model.get(stack, 0, Role::layer_flags);
        return flags ? static_cast<uint8_t>(flags->at(0, 0, l - 1)) : static_cast<uint8_t>(transformer::layer_local);
    }
    double frequency(uint32_t stack, const Config& c, uint32_t i, size_t length, bool local) const
    {
        const Weights* const table = model.get(stack, 0, Role::rope_freqs);
        if (!table) return std::pow(static_cast<double>(c.rope_theta), -2.0 * i / c.rope_dim);
        const bool second = c.rope_long_from ? length > c.rope_long_from : local;
        return static_cast<double>(table->at(0, second ? 1 : 0, i));
    }
    void rotate(uint32_t stack, const Config& c, Row& x, size_t at, size_t position, size_t length, bool local) const
    {
        const Weights* const table = model.get(stack, 0, Role::rope_freqs);
        const bool plain =
            local && table && table->rows > 1 && !c.rope_long_from; // the local frequencies are not scaled
        const double scale = plain ? 1.0 : static_cast<double>(c.rope_scale);
        for (uint32_t i = 0; i < c.rope_dim / 2; i++) {
            const double angle = static_cast<double>(position) * frequency(stack, c, i, length, plain);
            const double cosine = std::cos(angle) * scale, sine = std::sin(angle) * scale;
            double& a = x[at + (interleaved ? 2 * i : i)];
            double& b = x[at + (interleaved ? 2 * i + 1 : i + c.rope_dim / 2)];
            const double turned = a * cosine - b * sine;
            b = b * cosine + a * sine;
            a = turned;
        }
    }
    void norm_heads(const Config& c, const Weights* w, const Weights* b, Row& x, uint32_t heads, uint32_t d) const
    {
        if (!w) return;
        const NormKind kind = c.flags & transformer::flag_qk_norm_layer ? NormKind::layer : NormKind::rms;
        if (w->cols != d) norm_row(kind, static_cast<double>(c.qk_norm_eps), *w, b, 0, x.data(), x.size());
        else
            for (uint32_t h = 0; h < heads; h++)
                norm_row(kind, static_cast<double>(c.qk_norm_eps), *w, b, w->rows > 1 ? h : 0, &x[size_t{h} * d], d);
    }
    static void clip(Table& x, double limit)
    {
        for (Row& row : x)
            for (double& v : row)
                if (limit > 0) v = std::max(-limit, std::min(limit, v));
    }
    static double scale_of(const Config& c)
    {
        return c.attn_scale > 0 ? static_cast<double>(c.attn_scale) : 1 / std::sqrt(static_cast<double>(c.head_dim));
    }

    // Weights of one query over the keys, with the sink as one more key that has no value.
    static void softmax(Row& s, const double* sink)
    {
        double top = sink ? *sink : -HUGE_VAL, sum = 0;
        for (const double v : s) top = std::max(top, v);
        if (top <= -HUGE_VAL) {
            std::fill(s.begin(), s.end(), 0.0);
            return;
        }
        for (double& v : s) sum += v = std::exp(v - top);
        if (sink) sum += std::exp(*sink - top);
        for (double& v : s) v /= sum;
    }

    Table attention(uint32_t stack, const Config& c, uint32_t l, const Table& h, const std::vector<uint8_t>& mask) const
    {
        const auto get = [&](Role role, bool bias = false) { return model.get(stack, l, role, bias); };
        const size_t n = h.size();
        const uint32_t d = c.head_dim, group = c.n_heads / c.n_kv_heads;
        const uint8_t flags = layer_flags(stack, l);
        Table q, k, v;
        const bool latent = c.kv_lora_rank != 0;
        if (latent) { // q and k of a head: rope part first, as the cache has them
            Table low = h;
            if (c.q_lora_rank) {
                low = linear(stack, l, Role::wq_a, h);
                for (Row& row : low)
                    norm_heads(c, get(Role::q_a_norm), get(Role::q_a_norm, true), row, 1, c.q_lora_rank);
            }
            q = linear(stack, l, Role::wq, low);
            k = linear(stack, l, Role::wkv_a, h);
            for (Row& row : k) {
                Row part(row.begin() + c.rope_dim, row.end());
                norm_heads(c, get(Role::kv_a_norm), get(Role::kv_a_norm, true), part, 1, c.kv_lora_rank);
                std::copy(part.begin(), part.end(), row.begin() + c.rope_dim);
            }
        } else {
            q = linear(stack, l, Role::wq, h);
            k = linear(stack, l, Role::wk, h);
            v = linear(stack, l, Role::wv, h);
            clip(v, static_cast<double>(c.qkv_clip));
        }
        const uint32_t wide = latent ? c.rope_dim + c.nope_head_dim : d;
        const bool after = (c.flags & transformer::flag_qk_norm_after_rope) != 0;
        for (int pass = 0; pass < 2; pass++) {
            if (after == (pass == 1))
                for (size_t t = 0; t < n && !latent; t++) {
                    norm_heads(c, get(Role::q_norm), get(Role::q_norm, true), q[t], c.n_heads, d);
                    norm_heads(c, get(Role::k_norm), get(Role::k_norm, true), k[t], c.n_kv_heads, d);
                }
            if (pass) break;
            if (!latent) {
                clip(q, static_cast<double>(c.qkv_clip));
                clip(k, static_cast<double>(c.qkv_clip));
            }
            for (size_t t = 0; t < n && c.rope_dim && !(flags & transformer::layer_no_rope); t++) {
                const bool local = (flags & transformer::layer_rope_local) != 0;
                for (uint32_t head = 0; head < c.n_heads; head++)
                    rotate(stack, c, q[t], size_t{head} * wide, t, n, local);
                for (uint32_t head = 0; head < c.n_kv_heads; head++)
                    rotate(stack, c, k[t], size_t{head} * d, t, n, local);
            }
        }
        Table mixed(n);
        for (size_t i = 0; i < n; i++)
            for (uint32_t head = 0; head < c.n_heads; head++) {
                double scale = scale_of(c);
                if (flags & transformer::layer_query_temperature)
                    scale *= 1 + static_cast<double>(c.temperature_scale) *
                                     std::log(1 + std::floor(static_cast<double>(i + 1) /
                                                             static_cast<double>(c.temperature_floor)));
                const uint32_t kv = head / group;
                Row s(n, -HUGE_VAL);
                for (size_t j = 0; j < n; j++) {
                    if (!sees(c, flags, i, j) || (!mask.empty() && !mask[j])) continue;
                    double sum = 0;
                    if (latent) {
                        for (uint32_t e = 0; e < c.rope_dim; e++) sum += q[i][head * wide + e] * k[j][e];
                        const Weights& up = *get(Role::wk_b);  // the head's key without position: wk_b' latent
                        for (uint32_t e = 0; e < c.nope_head_dim; e++) {
                            double key = 0;
                            for (uint32_t r = 0; r < c.kv_lora_rank; r++)
                                key += static_cast<double>(up.at(head, r, e)) * k[j][c.rope_dim + r];
                            sum += q[i][head * wide + c.rope_dim + e] * key;
                        }
                    } else
                        for (uint32_t e = 0; e < d; e++) sum += q[i][head * d + e] * k[j][kv * d + e];
                    sum *= scale;
                    if (c.attn_softcap > 0)
                        sum =
                            static_cast<double>(c.attn_softcap) * std::tanh(sum / static_cast<double>(c.attn_softcap));
                    s[j] = sum + bias(stack, c, l, head, i, j, q, k, scale);
                }
                const double sink = get(Role::sinks) ? static_cast<double>(get(Role::sinks)->at(0, 0, head)) : 0.0;
                softmax(s, get(Role::sinks) ? &sink : nullptr);
                const uint32_t dv = latent ? c.kv_lora_rank : c.v_head_dim;
                Row out(dv);
                for (size_t j = 0; j < n; j++)
                    for (uint32_t e = 0; e < dv; e++)
                        out[e] += s[j] * (latent ? k[j][c.rope_dim + e] : v[j][kv * dv + e]);
                if (latent) {
                    const Weights& up = *get(Role::wv_b);
                    Row value(c.mla_v_head_dim);
                    for (uint32_t r = 0; r < c.mla_v_head_dim; r++)
                        for (uint32_t e = 0; e < dv; e++) value[r] += static_cast<double>(up.at(head, r, e)) * out[e];
                    out = value;
                }
                mixed[i].insert(mixed[i].end(), out.begin(), out.end());
            }
        return linear(stack, l, Role::wo, mixed);
    }
    static bool sees(const Config& c, uint8_t flags, size_t i, size_t j)
    {
        const bool causal = (c.flags & transformer::flag_causal) != 0;
        if (causal && j > i) return false;
        if (!(flags & transformer::layer_local)) return true;
        if (c.window && j + c.window <= i) return false;       // the window counts the query itself
        if (c.window && !causal && j > i + c.window_ahead) return false;
        return !c.chunk || i / c.chunk == j / c.chunk;
    }
    double bias(uint32_t stack, const Config& c, uint32_t l, uint32_t head, size_t i, size_t j, const Table& q,
                const Table& k, double scale) const
    {
        const double distance = static_cast<double>(j) - static_cast<double>(i), m = c.relative_distance;
        const uint32_t column = static_cast<uint32_t>(m + std::max(-m, std::min(m, distance))), d = c.head_dim;
        double sum = 0;
        if (const Weights* w = model.get(stack, 0, Role::alibi_slopes))
            sum += static_cast<double>(w->at(0, 0, head)) * distance;
        if (const Weights* w = model.get(stack, l, Role::relative_bias))
            sum += static_cast<double>(w->at(0, head, column));
        if (const Weights* rows = model.get(stack, 0, Role::relative_rows)) {
            const uint32_t row = static_cast<uint32_t>(rows->at(0, 0, column));
            for (uint32_t e = 0; e < d; e++) {
                sum += scale * q[i][head * d + e] *
                       static_cast<double>(model.get(stack, l, Role::rel_key)->at(0, row, head * d + e));
                sum += scale * k[j][head * d + e] *
                       static_cast<double>(model.get(stack, l, Role::rel_query)->at(0, row, head * d + e));
            }
        }
        return sum;
    }
    Table cross(const Config& c, uint32_t l, const Table& h, const Table& memory,
                const std::vector<uint8_t>* mask) const
    {
        const Table q = linear(0, l, Role::cross_wq, h), k = linear(0, l, Role::cross_wk, memory),
                    v = linear(0, l, Role::cross_wv, memory);
        const uint32_t d = c.head_dim, dv = c.v_head_dim, group = c.n_heads / c.n_kv_heads;
        Table mixed(h.size(), Row(size_t{c.n_heads} * dv));
        for (size_t i = 0; i < h.size(); i++)
            for (uint32_t head = 0; head < c.n_heads; head++) {
                Row s(memory.size(), -HUGE_VAL);
                for (size_t j = 0; j < memory.size(); j++) {
                    if (mask && !mask->empty() && !(*mask)[j]) continue;
                    double sum = 0;
                    for (uint32_t e = 0; e < d; e++) sum += q[i][head * d + e] * k[j][head / group * d + e];
                    s[j] = scale_of(c) * sum;
                    if (c.attn_softcap > 0)
                        s[j] =
                            static_cast<double>(c.attn_softcap) * std::tanh(s[j] / static_cast<double>(c.attn_softcap));
                }
                softmax(s, nullptr);
                for (size_t j = 0; j < memory.size(); j++)
                    for (uint32_t e = 0; e < dv; e++) mixed[i][head * dv + e] += s[j] * v[j][head / group * dv + e];
            }
        return linear(0, l, Role::cross_wo, mixed);
    }

    Table mlp(uint32_t stack, const Config& c, uint32_t l, Role gate, Role up, Role down, uint32_t expert,
              const Table& x) const
    {
        Table u = linear(stack, l, up, x, expert), g;
        if (model.get(stack, l, gate)) g = linear(stack, l, gate, x, expert);
        const double limit = static_cast<double>(c.mlp_clamp), alpha = static_cast<double>(c.mlp_alpha);
        for (size_t t = 0; t < u.size(); t++)
            for (size_t i = 0; i < u[t].size(); i++) {
                if (g.empty()) u[t][i] = activate(c.activation, u[t][i]);
                else if (c.activation == Activation::clamped_swiglu) {
                    const double a = std::min(g[t][i], limit), b = std::max(-limit, std::min(limit, u[t][i]));
                    u[t][i] = (b + 1) * a / (1 + std::exp(-alpha * a));
                } else u[t][i] *= activate(c.activation, g[t][i]);
            }
        return linear(stack, l, down, u, expert);
    }
    // The chosen experts and their weights.
    std::vector<std::pair<uint32_t, double>> route(uint32_t stack, const Config& c, uint32_t l, Row p) const
    {
        double sum = 0;
        const Row raw = p;
        for (double& v : p) sum += v = c.router == transformer::Router::sigmoid ? 1 / (1 + std::exp(-v)) : std::exp(v);
        if (c.router == transformer::Router::softmax)
            for (double& v : p) v /= sum;
        Row score = p;
        const Weights* const shift = model.get(stack, l, Role::router_bias);
        for (uint32_t e = 0; shift && e < c.n_experts; e++) score[e] += static_cast<double>(shift->at(0, 0, e));
        std::vector<uint32_t> order;
        if (c.n_groups > 1 && c.n_groups_active) {
            const uint32_t each = c.n_experts / c.n_groups;
            std::vector<std::pair<double, uint32_t>> groups;
            for (uint32_t g = 0; g < c.n_groups; g++) {
                Row inside(score.begin() + g * each, score.begin() + (g + 1) * each);
                std::sort(inside.rbegin(), inside.rend());
                groups.emplace_back(inside[0] + (c.flags & transformer::flag_group_top2 ? inside[1] : 0), g);
            }
            std::sort(groups.rbegin(), groups.rend());
            for (uint32_t i = 0; i < c.n_groups_active; i++)
                for (uint32_t e = 0; e < each; e++) order.push_back(groups[i].second * each + e);
        } else
            for (uint32_t e = 0; e < c.n_experts; e++) order.push_back(e);
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
        order.resize(c.n_experts_active);
        double chosen = 0;
        for (const uint32_t e : order) chosen += p[e];
        std::vector<std::pair<uint32_t, double>> out;
        for (const uint32_t e : order)
            out.emplace_back(e, (c.flags & transformer::flag_renormalise ? p[e] / chosen : p[e]) *
                                    static_cast<double>(c.routed_scale));
        return out;
    }
    Table feed_forward(uint32_t stack, const Config& c, uint32_t l, const Table& x) const
    {
        if (!model.get(stack, l, Role::router)) return mlp(stack, c, l, Role::gate, Role::up, Role::down, 0, x);
        const Table scores = linear(stack, l, Role::router, x);
        Table y(x.size(), Row(c.dim));
        for (size_t t = 0; t < x.size(); t++) {
            for (const auto& choice : route(stack, c, l, scores[t])) {
                const bool before = (c.flags & transformer::flag_scale_expert_input) != 0;
                Table in = {x[t]};
                for (double& v : in[0]) v *= before ? choice.second : 1;
                const Table out = mlp(stack, c, l, Role::gate, Role::up, Role::down, choice.first, in);
                for (uint32_t i = 0; i < c.dim; i++) y[t][i] += (before ? 1 : choice.second) * out[0][i];
            }
            if (!model.get(stack, l, Role::shared_up)) continue;
            const Table one = {x[t]},
                        out = mlp(stack, c, l, Role::shared_gate, Role::shared_up, Role::shared_down, 0, one);
            double weight = 1;
            if (model.get(stack, l, Role::shared_router))
                weight = 1 / (1 + std::exp(-linear(stack, l, Role::shared_router, one)[0][0]));
            for (uint32_t i = 0; i < c.dim; i++) y[t][i] += weight * out[0][i];
        }
        return y;
    }
};

// The largest |a - b| / (1 + |b|).
inline double distance(const std::vector<float>& a, const std::vector<double>& b)
{
    if (a.size() != b.size()) return HUGE_VAL;
    double most = 0;
    for (size_t i = 0; i < a.size(); i++) {
        const double d = std::fabs(static_cast<double>(a[i]) - b[i]) / (1 + std::fabs(b[i]));
        if (!(d <= most)) most = d;                            // a NaN stays
    }
    return most;
}

}  // namespace test
#endif
