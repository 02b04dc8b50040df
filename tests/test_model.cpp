// The numbers of the block family: against numpy (tests/data, made by make_data.py), and against the double-precision
// reference of tests/reference.hpp, one case for each published wiring and then random members of the family.
#include "data/numpy_logits.hpp"
#include "reference.hpp"

using namespace test;
using namespace transformer;

namespace {

// The rows that make_data.py keeps: 0, 1, the middle one, the last one.
double distance_to_numpy(const TestModel& m, const float* expected, uint32_t length)
{
    const Opened opened(m);
    const uint32_t n = m.main.n_outputs, rows[] = {0, 1, length / 2, length - 1};
    const auto ids = random_tokens(length, m.main.vocab_size);
    const std::vector<float> logits = all_logits(opened.model, plain_options(length), ids, length);
    std::vector<float> a;
    for (const uint32_t row : rows) a.insert(a.end(), logits.begin() + row * n, logits.begin() + (row + 1) * n);
    return distance(a, std::vector<double>(expected, expected + 4 * n));
}

struct Sides {                                                 // the inputs of a model's stacks
    Sequence main, source;
};
Sides random_input(const TestModel& m, uint32_t length, uint32_t source_length, uint64_t seed)
{
    Random r{scramble(seed)};
    Sides in;
    const auto fill = [&](Sequence& s, const Config& c, uint32_t n) {
        if (c.n_features) {
            s.features.assign(c.n_features, Row(c.n_frames));
            for (Row& row : s.features)
                for (double& v : row) v = static_cast<double>(r.number());
            return;
        }
        if (c.vocab_size) s.tokens = random_tokens(n, c.vocab_size, seed + n);
        else {
            s.rows.assign(n, Row(c.dim));
            for (Row& row : s.rows)
                for (double& v : row) v = static_cast<double>(r.number());
        }
        for (uint32_t i = 0; c.n_types && i < n; i++) s.types.push_back(static_cast<int32_t>(r.below(c.n_types)));
        const bool masked = !is_causal(c) && r.chance(2);
        for (uint32_t i = 0; masked && i < n; i++) s.mask.push_back(i == n / 2 || !r.chance(4));
    };
    fill(in.main, m.main, length);
    if (m.encoder.n_layers) fill(in.source, m.encoder, source_length);
    return in;
}

struct Floats {                                                // a Sequence as an Input
    explicit Floats(const Sequence& s)
    {
        for (const Table* t : {&s.rows, &s.features})
            for (const double v : Reference::flat(*t)) values.push_back(static_cast<float>(v));
        in.tokens = s.tokens.empty() ? nullptr : s.tokens.data();
        in.types = s.types.empty() ? nullptr : s.types.data();
        in.mask = s.mask.empty() ? nullptr : s.mask.data();
        if (!s.rows.empty()) in.rows = values.data();
        if (!s.features.empty()) in.features = values.data();
        in.count = static_cast<uint32_t>(!s.rows.empty()      ? s.rows.size()
                                         : s.features.empty() ? s.tokens.size()
                                                              : s.features[0].size());
    }
    std::vector<float> values;
    Input in;
};

// The largest relative difference between a model's run and the reference: encoder, all logits or hidden rows.
double distance_to_reference(const TestModel& m, uint32_t length, uint64_t seed, uint32_t batch = 0)
{
    const Opened opened(m);
    const Reference reference(m);
    const bool causal = is_causal(m.main);
    const Sides sides = random_input(m, length, 1 + length * 2 / 3, seed);
    Options o = plain_options(length);
    o.source_capacity = length;
    o.batch = batch && !m.main.rope_long_from ? batch : length;                        // a length is that of one call
    o.all_logits = causal;
    Started s(opened.model, o);
    double most = 0;
    Table memory;
    if (m.encoder.n_layers) {
        Rows hidden;
        REQUIRE_OK(encode(s.session, Floats(sides.source).in, &hidden));
        memory = reference.run(1, sides.source);
        most = distance(copy_of(hidden), Reference::flat(memory));
    }
    const Table h = reference.run(0, sides.main, &memory, &sides.source.mask);
    if (m.main.n_outputs == 0) {                               // hidden states are the result
        REQUIRE_OK(forward(s.session, Floats(sides.main).in, nullptr));
        return std::max(most, distance(copy_of(s.session.hidden), Reference::flat(h)));
    }
    std::vector<float> got;
    if (causal && !sides.main.tokens.empty() && sides.main.types.empty())
        got = all_logits(s.session, sides.main.tokens, o.batch);
    else {
        float* logits = nullptr;
        const Floats in(sides.main);
        Input part = in.in;
        for (uint32_t done = 0; done < in.in.count; done += part.count) {
            part.count = causal ? std::min(o.batch, in.in.count - done) : in.in.count;
            if (in.in.tokens) part.tokens = in.in.tokens + done;
            if (in.in.types) part.types = in.in.types + done;
            if (in.in.rows) part.rows = in.in.rows + size_t{done} * m.main.dim;
            REQUIRE_OK(forward(s.session, part, &logits));
            got.insert(got.end(), logits, logits + size_t{s.session.logit_rows} * m.main.n_outputs);
        }
    }
    return std::max(most, distance(got, Reference::flat(reference.head(h, sides.main.mask))));
}

constexpr double close_enough = 1e-5;
#define CHECK_REFERENCE(model, length) CHECK(distance_to_reference(model, length, 11) < close_enough)

}  // namespace

// ---- numpy ----------------------------------------------------------------------------------------------------------

TEST_CASE("a Llama with grouped heads agrees with numpy")
{
    CHECK(distance_to_numpy(tiny_llama(), numpy::llama, 16) < 1e-5);
}

TEST_CASE("the base of the rotary positions comes from the file")
{
    TestModel m = tiny_llama();
    m.main.rope_theta = 1e6f;
    CHECK(distance_to_numpy(m, numpy::theta_million, 16) < 1e-5);
    CHECK(distance_to_numpy(m, numpy::llama, 16) > 1e-3);
}

TEST_CASE("a table of rotary frequencies scaled in three bands agrees with numpy past the original length")
{
    TestModel m = tiny_llama();
    m.add(0, 0, Role::rope_freqs, 1, 2).values = {numpy::rope_bands_frequencies[0], numpy::rope_bands_frequencies[1]};
    CHECK(distance_to_numpy(m, numpy::rope_bands, 64) < 1e-5);
    // the formula itself: short waves are kept, long ones divided by the factor, the others lie between
    uint32_t kept = 0, divided = 0, blended = 0;
    for (uint32_t i = 0; i < 32; i++) {
        const double plain = std::pow(5e5, -2.0 * i / 64),
                     ratio = static_cast<double>(numpy::llama3_frequencies[i]) / plain;
        kept += std::fabs(ratio - 1) < 1e-6;
        divided += std::fabs(ratio - 0.125) < 1e-6;
        blended += ratio > 0.1251 && ratio < 0.9999;
    }
    CHECK(kept + divided + blended == 32);
    CHECK(kept > 10);
    CHECK(divided > 8);
    CHECK(blended > 2);
}

TEST_CASE("a head width that is not the width divided by the heads agrees with numpy")
{
    const TestModel m = make_model(small_config(20, 24, 2, 4, 2, 8, 64), Slots{}, 2);
    CHECK(m.get(0, 1, Role::wq)->rows == 32);
    CHECK(m.get(0, 1, Role::wk)->rows == 16);
    CHECK(m.get(0, 1, Role::wo)->cols == 32);
    CHECK(distance_to_numpy(m, numpy::head_dim_8, 16) < 1e-5);
}

TEST_CASE("norms of queries and keys over all heads and over each head agree with numpy")
{
    Slots s;
    s.qk = QkNorm::full;
    const TestModel full = make_model(tiny_config(), s, 3);
    CHECK(full.get(0, 1, Role::q_norm)->cols == 16);
    CHECK(full.get(0, 1, Role::k_norm)->cols == 8);
    CHECK(distance_to_numpy(full, numpy::qk_norm_full, 16) < 1e-5);
    s.qk = QkNorm::one_head;
    const TestModel head = make_model(tiny_config(), s, 3);
    CHECK(head.get(0, 1, Role::q_norm)->cols == 4);
    CHECK(distance_to_numpy(head, numpy::qk_norm_head, 16) < 1e-5);

    TestModel wrong = make_model(tiny_config(), s, 3);         // a key norm as wide as the queries
    wrong.add(0, 1, Role::k_norm, 1, 16);
    const AlignedBytes bytes = wrong.checkpoint();
    Model model;
    const Status status = open(bytes.data, bytes.size, &model);
    CHECK(status.code == Code::bad_tensor);
    CHECK(std::string(status.field) == "k_norm");
}

TEST_CASE("a GPT-2 without an output matrix of its own agrees with numpy")
{
    Config c = small_config(16, 64, 2, 4, 4, 4, 50);
    c.rope_dim = 0;
    c.norm = NormKind::layer;
    c.activation = Activation::gelu_tanh;
    Slots s;
    s.positions = 16;
    s.norm_shift = s.attention_bias = s.output_bias = s.ffn_bias = true;
    s.gate = false;
    s.head = Head::tied;
    const TestModel m = make_model(c, s, 4);
    CHECK(distance_to_numpy(m, numpy::gpt2, 16) < 1e-5);

    const Opened tied(m);                                      // both roles name the same bytes
    CHECK(tied.model.lm_head.w.data == tied.model.main.token_embedding.data);
    Options o = plain_options(17);                             // 16 learned positions: a longer session is refused
    std::vector<unsigned char> memory(static_cast<size_t>(session_size(tied.model, o)));
    Session session;
    const Status status = start(tied.model, o, memory.data(), memory.size(), &session);
    CHECK(status.code == Code::bad_argument);
    CHECK(std::string(status.field) == "options.capacity");
    CHECK(status.where == 16);
}

TEST_CASE("experts with and without weights that sum to 1 agree with numpy")
{
    Config c = tiny_config();
    c.n_experts = 4;
    c.n_experts_active = 2;
    CHECK(distance_to_numpy(make_model(c, Slots{}, 5), numpy::experts, 16) < 1e-5);
    c.flags |= flag_renormalise;
    CHECK(distance_to_numpy(make_model(c, Slots{}, 5), numpy::experts_renormalised, 16) < 1e-5);
}

TEST_CASE("the router's weights of two experts out of four are the published ones")
{
    // router logits 2, 1, 0, -1 for every token; expert e gives e + 1 in its one row
    for (const bool renormalise : {false, true}) {
        Config c = small_config(2, 1, 1, 1, 1, 2, 3);
        c.n_experts = 4;
        c.n_experts_active = 2;
        c.activation = Activation::identity;
        c.n_outputs = 0;
        if (renormalise) c.flags |= flag_renormalise;
        Slots s;
        s.pre = s.final_norm = s.gate = false;
        s.ffn_bias = true;
        TestModel m = make_model(c, s, 1);
        for (auto& entry : m.tensors) std::fill(entry.second.values.begin(), entry.second.values.end(), 0.0f);
        m.at(0, 1, Role::router, true).values = {2, 1, 0, -1};
        m.at(0, 1, Role::down, true).values = {1, 0, 0, 1, 0, 0, 0, 0}; // expert 0: (1, 0), expert 1: (0, 1)
        const Opened opened(m);
        Started run(opened.model, plain_options(4));
        REQUIRE_OK(forward(run.session, tokens_of({1}), nullptr));
        CHECK(static_cast<double>(run.session.hidden.data[0]) ==
              doctest::Approx(renormalise ? 0.7311 : 0.6439).epsilon(1e-4));
        CHECK(static_cast<double>(run.session.hidden.data[1]) ==
              doctest::Approx(renormalise ? 0.2689 : 0.2369).epsilon(1e-4));
    }
}

// ---- The double-precision reference: decoders -----------------------------------------------------------------------

TEST_CASE("one head, shared heads and one key head for all agree with the reference")
{
    for (const uint32_t kv : {1u, 2u, 4u})
        CHECK_REFERENCE(make_model(small_config(16, 40, 2, 4, kv, 4, 50), Slots{}, kv), 40);
    CHECK_REFERENCE(make_model(small_config(7, 9, 1, 1, 1, 2, 11), Slots{}, 3), 20);
}

TEST_CASE("values that are wider or narrower than keys agree with the reference")
{
    Config c = tiny_config();
    for (const uint32_t width : {1u, 3u, 4u, 9u, 24u}) {
        c.v_head_dim = width;
        CHECK_REFERENCE(make_model(c, Slots{}, width), 30);
    }
}

TEST_CASE("attention across blocks of 128 positions agrees with the reference")
{
    CHECK_REFERENCE(tiny_llama(), 300);
    CHECK(distance_to_reference(tiny_llama(), 129, 5, 7) < close_enough);
}

TEST_CASE("all placements of norms agree with the reference")
{
    for (const NormKind kind : {NormKind::rms, NormKind::layer})
        for (uint32_t slots = 1; slots < 8; slots++) {
            Config c = tiny_config();
            c.norm = kind;
            Slots s;
            s.pre = slots & 1;
            s.post = slots & 2;
            s.out = slots & 4;
            s.norm_shift = kind == NormKind::layer;
            s.final_norm = slots % 3 != 0;
            CHECK_REFERENCE(make_model(c, s, slots), 20);
        }
}

TEST_CASE("a decoder without any norm agrees with the reference")
{
    Slots s;
    s.pre = s.final_norm = false;
    CHECK_REFERENCE(make_model(tiny_config(), s, 1), 10);
}

TEST_CASE("parallel branches with one norm and with two agree with the reference")
{
    Config c = tiny_config();
    c.flags |= flag_parallel;
    TestModel m = make_model(c, Slots{}, 1);
    CHECK_REFERENCE(m, 20);
    for (uint32_t l = 1; l <= 2; l++) {                        // one tensor bound twice
        m.at(0, l, Role::attn_norm_pre).identity = m.at(0, l, Role::ffn_norm_pre).identity = 10 + l;
        m.at(0, l, Role::ffn_norm_pre).values = m.at(0, l, Role::attn_norm_pre).values;
    }
    CHECK_REFERENCE(m, 20);
}

TEST_CASE("windows, chunks and layers without them agree with the reference")
{
    for (const bool chunk : {false, true})
        for (const uint32_t size : {1u, 5u, 16u, 127u, 128u, 129u, 200u}) {
            Config c = tiny_config();
            (chunk ? c.chunk : c.window) = size;
            Slots s;
            CHECK_REFERENCE(make_model(c, s, size), 270);
            s.layer_flags = {0, layer_local};
            CHECK_REFERENCE(make_model(c, s, size), 140);
        }
}

TEST_CASE("layers without rotary positions and queries with a temperature agree with the reference")
{
    Config c = tiny_config();
    c.chunk = 50;
    c.temperature_floor = 8;
    c.temperature_scale = 0.1f;
    Slots s;
    s.layer_flags = {layer_local, layer_no_rope | layer_query_temperature};
    CHECK_REFERENCE(make_model(c, s, 1), 150);
}

TEST_CASE("attention sinks and the clamped gate agree with the reference")
{
    Config c = tiny_config();
    c.n_experts = 4;
    c.n_experts_active = 2;
    c.flags |= flag_renormalise;
    c.activation = Activation::clamped_swiglu;
    c.mlp_clamp = 0.75f;                                       // small, so that it is reached
    c.mlp_alpha = 1.702f;
    c.window = 20;
    Slots s;
    s.sinks = s.attention_bias = s.output_bias = s.ffn_bias = true;
    s.layer_flags = {layer_local, 0};
    CHECK_REFERENCE(make_model(c, s, 1), 150);
}

TEST_CASE("soft caps and scales agree with the reference")
{
    Config c = tiny_config();
    c.attn_softcap = 1.5f;
    c.logit_softcap = 2;
    c.embedding_scale = 4;
    c.attn_scale = 0.4f;
    c.norm = NormKind::rms;
    Slots s;
    s.post = true;
    CHECK_REFERENCE(make_model(c, s, 1), 40);
    c.attn_softcap = c.logit_softcap = 0;
    c.residual_scale = 0.22f;
    c.logit_scale = 0.0625f;
    CHECK_REFERENCE(make_model(c, s, 2), 40);
    c.qkv_clip = 0.25f;
    CHECK_REFERENCE(make_model(c, s, 3), 40);
}

TEST_CASE("two tables of rotary frequencies, by layer and by length, agree with the reference")
{
    Config c = tiny_config();
    c.window = 30;
    Slots s;
    s.rope_rows = 2;
    s.layer_flags = {layer_local | layer_rope_local, 0};
    CHECK_REFERENCE(make_model(c, s, 1), 60);
    s.layer_flags = {};
    c.rope_scale = 1.19f;
    for (const uint32_t from : {10u, 59u, 60u, 100u}) {
        c.rope_long_from = from;
        CHECK_REFERENCE(make_model(c, s, 2), 60);
    }
}

TEST_CASE("partly rotated heads agree with the reference")
{
    Config c = small_config(24, 30, 2, 3, 3, 8, 40);
    for (const uint32_t rope : {0u, 2u, 4u, 6u}) {
        c.rope_dim = rope;
        CHECK_REFERENCE(make_model(c, Slots{}, rope), 40);
    }
}

TEST_CASE("all norms of queries and keys, before and after the rotation, agree with the reference")
{
    for (const QkNorm qk : {QkNorm::one_head, QkNorm::every_head, QkNorm::full})
        for (uint32_t flags = 0; flags < 4; flags++) {
            Config c = tiny_config();
            if (flags & 1) c.flags |= flag_qk_norm_layer;
            if (flags & 2) c.flags |= flag_qk_norm_after_rope;
            c.qk_norm_eps = 1e-3f;
            Slots s;
            s.qk = qk;
            s.norm_shift = flags & 1;
            CHECK_REFERENCE(make_model(c, s, flags), 20);
        }
}

TEST_CASE("every activation, with and without a gate, agrees with the reference")
{
    for (uint32_t kind = 0; kind <= static_cast<uint32_t>(Activation::identity); kind++) {
        Config c = tiny_config();
        c.activation = static_cast<Activation>(kind);
        Slots s;
        s.ffn_bias = true;
        if (c.activation == Activation::clamped_swiglu) continue;
        CHECK_REFERENCE(make_model(c, s, kind), 10);
        s.gate = false;
        CHECK_REFERENCE(make_model(c, s, kind), 10);
    }
}

TEST_CASE("slopes by distance and learned biases by distance agree with the reference")
{
    Config c = tiny_config();
    c.rope_dim = 0;
    Slots s;
    s.alibi = true;
    CHECK_REFERENCE(make_model(c, s, 1), 140);
    s.alibi = false;
    s.relative_bias = true;
    c.relative_distance = 12;
    CHECK_REFERENCE(make_model(c, s, 2), 140);
}

TEST_CASE("learned and sinusoidal positions, token types and narrow embeddings agree with the reference")
{
    Config c = tiny_config();
    c.rope_dim = 0;
    Slots s;
    s.positions = 32;
    CHECK_REFERENCE(make_model(c, s, 1), 32);
    c.n_types = 3;
    s.embedding_norm = true;
    CHECK_REFERENCE(make_model(c, s, 2), 32);
    c.flags |= flag_sinusoidal;
    CHECK_REFERENCE(make_model(c, s, 3), 32);
    for (const uint32_t narrow : {5u, 16u, 23u})
        for (const bool projected : {false, true})
            for (const bool wide : {false, true}) {
                c.embedding_dim = narrow;
                s.norm_projected = projected;
                s.wide_positions = wide;
                CHECK_REFERENCE(make_model(c, s, 4), 20);
            }
}

TEST_CASE("every way to choose and weigh experts agrees with the reference")
{
    for (uint32_t i = 0; i < 64; i++) {
        Config c = tiny_config();
        c.n_experts = 6;
        c.n_experts_active = 1 + i % 3;
        c.router = i & 1 ? Router::sigmoid : Router::softmax;
        if (i & 2) c.flags |= flag_renormalise;
        if (i & 4) c.n_groups = 3, c.n_groups_active = 2;
        if (i & 8) c.flags |= flag_group_top2;
        if (i & 16) c.flags |= flag_scale_expert_input;
        if (i & 32) c.routed_scale = 2.5f;
        Slots s;
        s.router_bias = i % 5 < 2;
        if (i % 3 == 0) c.shared_hidden_dim = 12;
        s.shared_router = i % 2 == 0;
        if (i % 7 == 0) s.dense_layers = 1, c.dense_hidden_dim = 33;
        CHECK_REFERENCE(make_model(c, s, i), 12);
    }
}

TEST_CASE("of experts with equal scores the first ones are chosen, in groups and without")
{
    for (const bool groups : {false, true}) {
        Config c = small_config(4, 1, 1, 1, 1, 2, 3);
        c.n_experts = 6;
        c.n_experts_active = 2;
        if (groups) c.n_groups = 3, c.n_groups_active = 1;
        c.activation = Activation::identity;
        c.n_outputs = 0;
        Slots s;
        s.pre = s.final_norm = s.gate = false;
        s.ffn_bias = true;
        TestModel m = make_model(c, s, 1);
        for (auto& entry : m.tensors) std::fill(entry.second.values.begin(), entry.second.values.end(), 0.0f);
        for (uint32_t e = 0; e < 6; e++) m.at(0, 1, Role::down, true).values[e * 4] = static_cast<float>(1u << e);
        const Opened opened(m);
        Started run(opened.model, plain_options(4));
        REQUIRE_OK(forward(run.session, tokens_of({1}), nullptr));
        CHECK(static_cast<double>(run.session.hidden.data[0]) == doctest::Approx((1 + 2) / 6.0));      // a sixth each
    }
}

TEST_CASE("latent attention agrees with its expanded form")
{
    for (const uint32_t q_rank : {0u, 10u}) {
        Config c = small_config(16, 40, 2, 3, 1, 18, 50);
        c.rope_dim = 4;
        c.kv_lora_rank = c.v_head_dim = 14;
        c.nope_head_dim = 6;
        c.mla_v_head_dim = 5;
        c.q_lora_rank = q_rank;
        c.attn_scale = 0.3162f;                                // 1 / sqrt(rope + nope)
        CHECK_REFERENCE(make_model(c, Slots{}, q_rank), 140);
        c.window = 9;
        CHECK_REFERENCE(make_model(c, Slots{}, q_rank), 30);
    }
}

TEST_CASE("rows instead of tokens, and hidden states instead of logits, agree with the reference")
{
    Config c = tiny_config();
    c.n_outputs = 0;
    CHECK_REFERENCE(make_model(c, Slots{}, 1), 20);
    c = tiny_config();
    c.vocab_size = 0;
    CHECK_REFERENCE(make_model(c, Slots{}, 1), 20);
}

// ---- Encoders, and encoders with decoders ---------------------------------------------------------------------------

TEST_CASE("an encoder with types, masks and the head of BERT agrees with the reference")
{
    Config c = tiny_config();
    c.flags = 0;
    c.rope_dim = 0;
    c.n_types = 2;
    c.norm = NormKind::layer;
    c.activation = c.head_activation = Activation::gelu;
    Slots s;
    s.pre = s.final_norm = s.gate = false;
    s.out = s.norm_shift = s.embedding_norm = s.attention_bias = s.output_bias = s.ffn_bias = s.head_bias =
        s.head_norm = true;
    s.positions = 40;
    s.head_dense = 16;
    for (uint64_t seed = 1; seed < 5; seed++) CHECK_REFERENCE(make_model(c, s, seed), 40);
}

TEST_CASE("a head narrower than the model, with a bias, agrees with the reference")
{
    Config c = tiny_config();                                  // ALBERT: 16 -> 6 -> 64
    c.flags = 0;
    c.embedding_dim = 6;
    c.norm = NormKind::layer;
    c.head_activation = Activation::gelu_tanh;
    Slots s;
    s.norm_shift = s.head_bias = s.head_norm = s.embedding_norm = true;
    s.head_dense = 6;
    CHECK_REFERENCE(make_model(c, s, 1), 20);
}

TEST_CASE("pooled outputs agree with the reference")
{
    for (const Pooling pooling : {Pooling::none, Pooling::first, Pooling::mean, Pooling::last}) {
        Config c = tiny_config();
        c.flags = 0;
        c.pooling = pooling;
        c.n_outputs = 3;
        c.head_activation = Activation::tanh;
        Slots s;
        for (uint64_t seed = 1; seed < 4; seed++) {
            s.head_dense = seed > 1 ? 16 : 0;
            CHECK_REFERENCE(make_model(c, s, seed), 30);
        }
    }
}

TEST_CASE("encoders with local attention and with relative keys agree with the reference")
{
    Config c = tiny_config();
    c.flags = 0;
    c.n_kv_heads = 4;
    c.window = 9;
    c.window_ahead = 8;
    Slots s;
    s.layer_flags = {0, layer_local};
    CHECK_REFERENCE(make_model(c, s, 1), 150);
    c.window = c.window_ahead = 0;
    c.rope_dim = 0;
    c.relative_distance = 10;
    c.attn_scale = 0.2887f;
    s.relative_keys = true;
    CHECK_REFERENCE(make_model(c, s, 2), 50);
    s.relative_keys = false;
    s.relative_bias = true;
    CHECK_REFERENCE(make_model(c, s, 3), 50);
}

TEST_CASE("an encoder whose layers see one chunk only agrees with the reference")
{
    Config c = tiny_config();
    c.flags = 0;
    c.chunk = 7;
    CHECK_REFERENCE(make_model(c, Slots{}, 1), 30);
}

TEST_CASE("encoders with decoders agree with the reference")
{
    Config decoder = tiny_config(), encoder = small_config(16, 30, 3, 2, 1, 8, 40);
    decoder.flags |= flag_cross;
    decoder.rope_dim = encoder.rope_dim = 0;
    encoder.flags = encoder.n_outputs = 0;
    decoder.relative_distance = encoder.relative_distance = 9;
    Slots d, e;
    d.relative_bias = e.relative_bias = true;
    for (uint64_t seed = 1; seed < 4; seed++) CHECK_REFERENCE(make_model(decoder, d, seed, encoder, e), 40);
    d = e = Slots{}; // the original: norms behind, biases, sinusoidal positions
    for (Slots* s : {&d, &e}) {
        s->pre = s->final_norm = s->gate = false;
        s->out = s->norm_shift = s->attention_bias = s->output_bias = s->ffn_bias = s->embedding_norm = true;
    }
    decoder.norm = encoder.norm = NormKind::layer;
    decoder.flags |= flag_sinusoidal;
    encoder.flags |= flag_sinusoidal;
    for (uint64_t seed = 1; seed < 4; seed++) CHECK_REFERENCE(make_model(decoder, d, seed, encoder, e), 40);
}

TEST_CASE("an encoder of spectrograms agrees with the reference")
{
    Config decoder = tiny_config(), encoder = small_config(16, 30, 2, 4, 4, 4, 0);
    decoder.flags |= flag_cross;
    decoder.rope_dim = encoder.rope_dim = 0;
    encoder.flags = encoder.n_outputs = 0;
    encoder.n_features = 5;
    encoder.n_frames = 24;
    Slots d, e;
    d.positions = 30;
    e.positions = 12;
    CHECK_REFERENCE(make_model(decoder, d, 1, encoder, e), 20);
}

TEST_CASE("a decoder over rows that the caller gives agrees with the reference")
{
    Config c = tiny_config();
    c.flags |= flag_cross;
    const TestModel m = make_model(c, Slots{}, 1);
    const Opened opened(m);
    Options o = plain_options(20);
    o.source_capacity = 150;
    o.batch = 3;
    Started s(opened.model, o);
    const auto ids = random_tokens(9, 64);
    CHECK(forward(s.session, tokens_of(ids), nullptr).code == Code::no_memory_rows);
    Table memory(140, Row(16));
    std::vector<float> rows;
    std::vector<uint8_t> mask;
    Random r{3};
    for (Row& row : memory) {
        mask.push_back(!r.chance(3));
        for (double& v : row) {
            rows.push_back(r.number());
            v = static_cast<double>(rows.back());
        }
    }
    REQUIRE_OK(set_memory(s.session, rows.data(), 140, mask.data()));
    REQUIRE_OK(forward(s.session, tokens_of(ids), nullptr));
    Sequence in;
    in.tokens = ids;
    const Reference reference(m);
    const Table all = reference.head(reference.run(0, in, &memory, &mask));
    CHECK(distance(last_row(s.session), all.back()) < close_enough);
    CHECK(set_memory(s.session, rows.data(), 151, nullptr).code == Code::session_full);
    CHECK(s.session.position == 9);
    const std::vector<float> before = last_row(s.session);     // the same rows again: the decoder starts anew
    REQUIRE_OK(set_memory(s.session, rows.data(), 140, mask.data()));
    CHECK(s.session.position == 0);
    REQUIRE_OK(forward(s.session, tokens_of(ids), nullptr));
    CHECK(same_bits(last_row(s.session), before));
}

// ---- Any member -----------------------------------------------------------------------------------------------------

TEST_CASE("random members of the family agree with the reference")
{
    for (uint64_t seed = 0; seed < 300; seed++) {
        INFO("seed " << seed);
        CHECK(distance_to_reference(random_model(seed), seed % 8 ? 20 : 140, seed,
                                    1 + static_cast<uint32_t>(seed % 40)) < 2e-4);
    }
}

// ---- Other precisions -----------------------------------------------------------------------------------------------

TEST_CASE("a model in bf16 or f16 gives the bits of the same rounded numbers in f32")
{
    for (const DType type : {DType::bf16, DType::f16}) {
        TestModel m = make_model(small_config(20, 43, 2, 4, 2, 8, 64), Slots{}, 6);
        const Opened half(m, type);
        for (auto& entry : m.tensors)
            for (float& v : entry.second.values)
                v = type == DType::bf16 ? bf16_to_f32(f32_to_bf16(v)) : f16_to_f32(f32_to_f16(v));
        for (const auto& [layer, role] : {std::make_pair(0u, Role::final_norm),
                                          {1u, Role::attn_norm_pre},
                                          {1u, Role::ffn_norm_pre},
                                          {2u, Role::attn_norm_pre},
                                          {2u, Role::ffn_norm_pre}})
            m.add(0, layer, role, 1, 20);                      // norms stay f32
        const Opened full(m);
        const auto ids = random_tokens(40, 64);
        CHECK(same_bits(all_logits(half.model, plain_options(40), ids, 40),
                        all_logits(full.model, plain_options(40), ids, 40)));
    }
}

TEST_CASE("quantised models stay near the reference, and a finer embedding helps a 4-bit model")
{
    TestModel m = make_model(small_config(64, 96, 2, 4, 2, 16, 200), Slots{}, 8);
    const auto ids = random_tokens(30, 200);
    const std::vector<double> exact = Reference(m).logits(ids);
    const auto error = [&](const Opened& opened) {
        const std::vector<float> a = all_logits(opened.model, plain_options(30), ids, 30);
        double sum = 0, size = 0;
        for (size_t i = 0; i < a.size(); i++) {
            sum += (static_cast<double>(a[i]) - exact[i]) * (static_cast<double>(a[i]) - exact[i]);
            size += exact[i] * exact[i];
        }
        return std::sqrt(sum / size);
    };
    const double at_8 = error(Opened(m, DType::q8_0)), at_4 = error(Opened(m, DType::q4_0)),
                 at_4_1 = error(Opened(m, DType::q4_1));
    CHECK(at_8 < 0.04);
    CHECK(at_4 < 0.35);
    CHECK(at_4_1 < 0.35);
    m.store_as(DType::q4_0);                                   // the embedding and the head too
    const double all_4 = error(Opened(m));
    CHECK(all_4 > at_4);
    CHECK(at_8 < at_4);
    MESSAGE("relative error of the logits: q8_0 ", at_8, ", q4_1 ", at_4_1, ", q4_0 ", at_4,
            ", q4_0 with its embedding and head ", all_4);
}

TEST_CASE("the widest row that a quantised matrix reads fits, whichever it is")
{
    for (uint32_t which = 0; which < 7; which++) {
        const uint32_t wide = 200;
        Config c = small_config(8, 8, 2, 1, 1, 8, 20);
        if (which == 0) c.hidden_dim = wide;
        if (which == 1) c.v_head_dim = wide;
        if (which == 2) c.embedding_dim = wide;
        if (which == 3) c.n_experts = 2, c.n_experts_active = 1, c.shared_hidden_dim = wide;
        if (which > 3) {
            c.rope_dim = 4;
            c.kv_lora_rank = c.v_head_dim = which == 4 ? wide : 8;
            c.head_dim = c.rope_dim + c.kv_lora_rank;
            c.nope_head_dim = which == 5 ? wide : 8;
            c.mla_v_head_dim = which == 6 ? wide : 8;
        }
        TestModel m = make_model(c, Slots{}, 30 + which);
        const std::vector<double> exact = Reference(m).logits(random_tokens(12, 20));
        m.store_as(DType::q8_0);
        const Opened opened(m);
        INFO("case " << which);
        CHECK(distance(all_logits(opened.model, plain_options(12), random_tokens(12, 20), 12), exact) < 0.15);
    }
}

TEST_CASE("every matrix may have its own type")
{
    const DType types[] = {DType::q8_0, DType::f32, DType::q4_0, DType::bf16, DType::q4_1, DType::f16};
    TestModel m = make_model(small_config(64, 96, 3, 4, 2, 16, 100), Slots{}, 9);
    const auto ids = random_tokens(20, 100);
    const std::vector<double> exact = Reference(m).logits(ids);
    size_t i = 0;
    for (auto& entry : m.tensors) entry.second.stored = types[i++ % 6];
    CHECK(distance(all_logits(Opened(m).model, plain_options(20), ids, 20), exact) < 1.0);
    CHECK(distance(all_logits(Opened(m).model, plain_options(20), ids, 20), exact) > 1e-4);
}

TEST_CASE("a cache of f16 stays near one of f32")
{
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(200, 64);
    const std::vector<float> a = all_logits(opened.model, plain_options(200, DType::f16), ids, 200);
    const std::vector<double> exact = Reference(tiny_llama()).logits(ids);
    CHECK(distance(a, exact) < 5e-3);
    CHECK(distance(a, exact) > 1e-6);
}

// ---- What is broken stays visible -----------------------------------------------------------------------------------

TEST_CASE("a NaN in any weight of a decoder reaches the logits, and sample() says so")
{
    Config c = tiny_config();
    c.n_experts = 3;
    c.n_experts_active = 2;
    Slots s;
    s.qk = QkNorm::one_head;
    s.attention_bias = s.output_bias = s.ffn_bias = s.sinks = true;
    s.dense_layers = 1;
    std::string hidden;                                        // the tensors whose NaN is not seen
    for (const Activation activation : {Activation::silu, Activation::relu, Activation::clamped_swiglu}) {
        c.activation = activation;
        c.mlp_clamp = activation == Activation::clamped_swiglu ? 7.0f : 0.0f;
        c.mlp_alpha = 1.702f;
        const TestModel m = make_model(c, s, 1);
        for (const auto& entry : m.tensors) {
            TestModel broken = m;
            for (float& v : broken.tensors.at(entry.first).values) v = float_of(0x7fc00000u);
            const Opened opened(broken);
            Started run(opened.model, plain_options(8));
            float* logits = nullptr;
            REQUIRE_OK(forward(run.session, tokens_of(random_tokens(8, 64)), &logits));
            Sampler sampler;
            int32_t token = -2;
            if (sample(sampler, logits, 64, &token).code == Code::not_a_number && token == -2) continue;
            hidden += std::to_string(entry.first >> 16 & 0xffff) + " " +
                      role_name(static_cast<uint32_t>(entry.first >> 1 & 0x7f));
            hidden += std::string(entry.first & 1 ? " bias" : "") + ", ";
        }
    }
    CHECK(hidden == "");
}

TEST_CASE("a row of zeros passes through the norms, and an infinite norm is seen")
{
    TestModel m = tiny_llama();
    std::fill_n(m.at(0, 0, Role::token_embedding).values.begin() + 5 * 16, 16, 0.0f);
    const Opened opened(m);
    for (const float logit : last_logits(opened.model, plain_options(4), {5})) CHECK(std::isfinite(logit));
    m.at(0, 2, Role::ffn_norm_pre).values[3] = HUGE_VALF;
    const Opened infinite(m);
    std::vector<float> logits = last_logits(infinite.model, plain_options(4), {6});
    Sampler sampler;
    int32_t token;
    CHECK(sample(sampler, logits.data(), 64, &token).code == Code::not_a_number);
}
