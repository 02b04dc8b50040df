// The same bits from every room, for every batch, every number of slices and threads, and every split of a prompt.
#include "helpers.hpp"

// The pool stands in the implementation's unit; its declarations are the same everywhere.
#define TRANSFORMER_THREADS
#include "transformer.hpp"

#include <algorithm>

using namespace test;
using namespace transformer;

namespace {

// Runs the slices on this thread, the last one first.
void backwards(void*, uint32_t n, Task task, void* data)
{
    while (n) task(data, --n);
}

std::string room_of(Isa isa) { return transformer::isa_names[static_cast<size_t>(isa)]; }

// One row of logits for each position, or the last row only.
std::vector<float> run(const Model& m, Options o, const std::vector<int32_t>& ids, uint32_t batch, bool all)
{
    if (all) return all_logits(m, o, ids, batch);
    o.batch = batch;
    return last_logits(m, o, ids);
}

// Everything that may not matter, against the plainest run: scalar, one token at a time, one slice.
void check_all_ways(const Model& m, const std::vector<int32_t>& ids, DType cache, bool thorough)
{
    Options o = plain_options(static_cast<uint32_t>(ids.size()), cache);
    o.isa = Isa::scalar;
    const bool all = m.main.config.n_outputs && m.main.config.rope_long_from == 0;
    const uint32_t whole = static_cast<uint32_t>(ids.size());
    const std::vector<float> want = run(m, o, ids, all ? 1 : whole, all);
    for (const Isa isa : rooms())
        for (const uint32_t batch : {1u, 2u, 7u, 64u, whole}) {
            if (!thorough && batch != 7 && batch != whole && isa == Isa::scalar) continue;
            o.isa = isa;
            o.slices = 1;
            o.parallel_for = nullptr;
            INFO(room_of(isa) << ", batch " << batch);
            CHECK(same_bits(run(m, o, ids, std::min(batch, whole), all), want));
            if (batch == 2 || batch == 64 || (!thorough && batch == 1) || (isa == Isa::scalar && batch != 7)) continue;
            for (const uint32_t slices : {2u, 3u, 5u, 8u, 64u}) {
                if (!thorough && slices != 3 && slices != 64) continue;
                o.slices = slices;
                o.parallel_for = backwards;
                INFO(slices << " slices");
                CHECK(same_bits(run(m, o, ids, std::min(batch, whole), all), want));
            }
        }
}

const DType all_types[] = {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1};

}  // namespace

TEST_CASE("every number format gives the same bits in every room, batch and split into slices")
{
    const TestModel tails = make_model(small_config(20, 43, 2, 4, 2, 8, 37), Slots{}, 21);      // nothing divides by 16
    const TestModel even = make_model(small_config(64, 96, 1, 4, 1, 16, 64), Slots{}, 22);
    for (const DType type : all_types)
        for (const TestModel* m : {&tails, &even}) {
            INFO("type " << static_cast<int>(type) << ", dim " << m->main.dim);
            TestModel stored = *m;
            stored.store_as(type);
            const Opened opened(stored);
            for (const DType cache : {DType::f32, DType::f16, DType::q8_0})
                check_all_ways(opened.model, random_tokens(m == &tails ? 135 : 30, m->main.vocab_size), cache,
                               type == DType::q8_0);
        }
}

TEST_CASE("a prompt that crosses blocks of 128 positions gives the same bits however it is cut")
{
    TestModel m = make_model(small_config(20, 24, 1, 3, 1, 10, 30), Slots{}, 23);
    const auto ids = random_tokens(300, 30);
    for (const DType cache : {DType::f32, DType::f16, DType::q8_0}) {
        const Opened opened(m, DType::q8_0);
        check_all_ways(opened.model, ids, cache, false);
        const std::vector<float> want = all_logits(opened.model, plain_options(300, cache), ids, 300);
        for (const uint32_t piece : {127u, 128u, 129u, 16u, 15u, 17u})
            CHECK(same_bits(all_logits(opened.model, plain_options(300, cache), ids, piece), want));
    }
    m.main.window = 130;
    const Opened window(m);
    check_all_ways(window.model, ids, DType::f16, false);
    m.main.window = 5;
    const Opened narrow(m);
    check_all_ways(narrow.model, ids, DType::f32, false);
}

TEST_CASE("one forward of all tokens, many of one, and generate() see the same bits")
{
    const Opened opened(make_model(small_config(20, 43, 2, 4, 2, 8, 37), Slots{}, 21), DType::q4_0);
    const auto ids = random_tokens(140, 37);
    const std::vector<float> want = all_logits(opened.model, plain_options(200, DType::f16), ids, 140);
    const std::vector<float> last(want.end() - 37, want.end());
    for (const uint32_t batch : {1u, 64u, 140u, 200u}) {
        Options o = plain_options(200, DType::f16);
        o.batch = batch;
        CHECK(same_bits(last_logits(opened.model, o, ids), last));
        Started s(opened.model, o);
        GenerateOptions g;
        g.max_tokens = 1;
        g.sampler.temperature = 0;
        int32_t token = -1;
        g.tokens = &token;
        g.ignore_stop = true;
        REQUIRE_OK(generate(s.session, ids.data(), 140, g, [](void*, const char*, uint32_t) { return true; }, nullptr));
        CHECK(token == std::max_element(last.begin(), last.end()) - last.begin());
        CHECK(same_bits(last_row(s.session), last));
    }
}

TEST_CASE("types and rows that are longer than a batch go on where the batch before ended")
{
    Config c = tiny_config();
    c.n_types = 5;
    const Opened opened(make_model(c, Slots{}, 1));
    const auto ids = random_tokens(40, 64), types = random_tokens(40, 5, 8);
    std::vector<float> rows(40 * 16);
    Random r{9};
    for (float& v : rows) v = r.number();
    for (const bool with_rows : {false, true}) {
        Input in = tokens_of(ids);
        in.types = types.data();
        if (with_rows) in.rows = rows.data();
        std::vector<float> want;
        for (const uint32_t batch : {40u, 7u, 1u}) {
            Options o = plain_options(40);
            o.batch = batch;
            Started s(opened.model, o);
            REQUIRE_OK(forward(s.session, in, nullptr));
            if (want.empty()) want = last_row(s.session);
            CHECK(same_bits(last_row(s.session), want));
        }
    }
}

TEST_CASE("random members of the family give the same bits in every room, batch and split into slices")
{
    for (uint64_t seed = 1000; seed < 1050; seed++) {
        TestModel m = random_model(seed, 0);
        m.store_as(all_types[seed % 6]);
        INFO("seed " << seed);
        const Opened opened(m);
        const auto ids = random_tokens(seed % 9 ? 25 : 150, m.main.vocab_size, seed);
        check_all_ways(opened.model, ids, seed % 2 ? DType::f32 : DType::f16, false);
    }
}

TEST_CASE("encoders and encoders with decoders give the same bits in every room and split into slices")
{
    for (uint64_t seed = 2000; seed < 2040; seed++) {
        const uint32_t kind = 1 + seed % 2;
        TestModel m = random_model(seed, kind);
        m.store_as(all_types[seed % 6]);
        INFO("seed " << seed);
        const Opened opened(m);
        Random r{seed};
        const Config& source = kind == 2 ? m.encoder : m.main;
        const uint32_t n = source.n_features ? source.n_frames : r.between(1, seed % 10 ? 30 : 150);
        std::vector<float> features(size_t{source.n_features} * n);
        for (float& v : features) v = r.number();
        const auto ids = random_tokens(n, source.vocab_size ? source.vocab_size : 1, seed),
                   after = random_tokens(20, m.main.vocab_size, seed);
        std::vector<uint8_t> mask(n);
        for (uint8_t& one : mask) one = !r.chance(3);
        Input in;
        in.count = n;
        if (source.n_features) in.features = features.data();
        else in.tokens = ids.data();
        if (r.chance(2)) in.mask = mask.data();
        std::vector<float> want;
        for (const Isa isa : rooms())
            for (const uint32_t slices : {1u, 3u, 8u}) {
                Options o = plain_options(std::max(n, 20u), seed % 2 ? DType::f32 : DType::f16);
                o.isa = isa;
                o.slices = slices;
                o.batch = slices == 1 ? 20 : slices;
                o.parallel_for = backwards;
                Started s(opened.model, o);
                std::vector<float> got;
                Rows hidden;
                REQUIRE_OK(encode(s.session, in, &hidden));
                got = copy_of(hidden);
                if (kind == 2) REQUIRE_OK(forward(s.session, tokens_of(after), nullptr));
                else REQUIRE_OK(forward(s.session, in, nullptr));
                const std::vector<float> last = last_row(s.session);
                got.insert(got.end(), last.begin(), last.end());
                if (want.empty()) want = got;
                INFO(room_of(isa) << ", " << slices << " slices");
                CHECK(same_bits(got, want));
            }
    }
}

TEST_CASE("any number of threads gives the same bits, for the prompt and for one token at a time")
{
    // Large enough that the work is really shared out.
    for (const DType type : {DType::f32, DType::q8_0}) {
        const Opened opened(make_model(small_config(96, 250, 2, 6, 2, 16, 900), Slots{}, 24), type);
        const auto ids = random_tokens(140, 900);
        Options o = plain_options(150);
        o.batch = 140;
        const std::vector<float> want = last_logits(opened.model, o, ids);
        for (const uint32_t threads : {1u, 2u, 3u, 5u, 8u, 64u}) {
            ThreadPool pool(threads);
            o.slices = threads;
            o.parallel_for = ThreadPool::parallel_for;
            o.parallel_user = &pool;
            INFO(threads << " threads");
            o.batch = 140;
            CHECK(same_bits(last_logits(opened.model, o, ids), want));
            o.batch = 32;
            Started s(opened.model, o);
            REQUIRE_OK(forward(s.session, tokens_of(ids, 0, 120), nullptr));
            for (size_t i = 120; i < 140; i++) REQUIRE_OK(forward(s.session, tokens_of(ids, i, 1), nullptr));
            CHECK(same_bits(last_row(s.session), want));
        }
    }
}

TEST_CASE("one token over thousands of keys is cut into blocks for the slices, with the same bits")
{
    for (const bool sinks_and_window : {false, true}) {
        Config c = small_config(64, 64, 2, 4, 1, 64, 100);
        Slots slots;
        slots.sinks = sinks_and_window;
        if (sinks_and_window) {
            c.window = 700;
            slots.layer_flags = {layer_local, 0};
        }
        const Opened opened(make_model(c, slots, 29), DType::q8_0);
        const auto ids = random_tokens(4400, 100);
        Options o = plain_options(4400);
        o.batch = 256;
        const auto decode = [&](const Options& options) {
            Started s(opened.model, options);
            std::vector<float> rows;
            REQUIRE_OK(forward(s.session, tokens_of(ids, 0, 4390), nullptr));
            for (size_t i = 4390; i < 4400; i++) {
                REQUIRE_OK(forward(s.session, tokens_of(ids, i, 1), nullptr));
                const std::vector<float> row = last_row(s.session);
                rows.insert(rows.end(), row.begin(), row.end());
            }
            return rows;
        };
        const std::vector<float> want = decode(o);
        o.parallel_for = backwards;
        for (const uint32_t slices : {2u, 3u, 8u, 64u}) {
            o.slices = slices;
            INFO(slices << " slices");
            CHECK(same_bits(decode(o), want));
        }
    }
}

TEST_CASE("what the session's memory held before does not matter")
{
    for (uint64_t seed = 3000; seed < 3060; seed++) {
        TestModel m = random_model(seed, 0);
        m.store_as(all_types[seed % 6]);
        const Opened opened(m);
        const auto ids = random_tokens(30, m.main.vocab_size, seed);
        INFO("seed " << seed);
        const std::vector<float> want = last_logits(opened.model, plain_options(30), ids, 0);
        for (const int fill : {0xff, 0x7f, 0x80})
            CHECK(same_bits(last_logits(opened.model, plain_options(30), ids, fill), want));
    }
}

TEST_CASE("layers that ask for local frequencies get the plain ones where there is one table")
{
    Slots s;
    s.layer_flags = {layer_local | layer_rope_local};
    for (const uint32_t rows : {0u, 1u}) {
        s.rope_rows = rows;
        const Opened opened(make_model(tiny_config(), s, 1));
        const auto ids = random_tokens(20, 64);
        const std::vector<float> want = last_logits(opened.model, plain_options(20), ids, 0);
        for (const int fill : {0xff, 0x3f})
            CHECK(same_bits(last_logits(opened.model, plain_options(20), ids, fill), want));
    }
}

TEST_CASE("after a rewind the same tokens give the same bits, and other tokens leave no trace")
{
    for (const DType cache : {DType::f16, DType::f32, DType::q8_0})
        for (const uint32_t position : {0u, 1u, 15u, 16u, 17u, 127u, 128u, 129u, 140u}) {
            const Opened opened(make_model(small_config(20, 24, 2, 3, 1, 8, 30), Slots{}, 25));
            const auto ids = random_tokens(140, 30), other = random_tokens(150, 30, 99);
            Options o = plain_options(300, cache);
            o.batch = 33;
            const std::vector<float> want = last_logits(opened.model, o, ids);
            Started s(opened.model, o);
            REQUIRE_OK(forward(s.session, tokens_of(ids), nullptr));
            REQUIRE_OK(rewind(s.session, position));
            REQUIRE_OK(forward(s.session, tokens_of(other), nullptr));
            CHECK_FALSE(same_bits(last_row(s.session), want));
            REQUIRE_OK(rewind(s.session, position));
            CHECK(s.session.position == position);
            if (position < 140) {
                REQUIRE_OK(forward(s.session, tokens_of(ids, position), nullptr));
                CHECK(same_bits(last_row(s.session), want));
            }
            const Status status = rewind(s.session, 141);
            CHECK(status.code == Code::bad_argument);
            CHECK(std::string(status.field) == "position");
        }
}

TEST_CASE("an observer sees every layer and changes nothing")
{
    struct Seen {
        uint32_t embeddings = 0, layers = 0, hidden = 0, rows = 0;
        double worst = 0; // of |1 - sum of a query's weights|, over the first block
    };
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(40, 64);
    Options o = plain_options(40);
    const std::vector<float> want = last_logits(opened.model, o, ids);
    Seen seen;
    o.observer_user = &seen;
    o.observe_attention = true;
    o.observer = [](void* user, const Event& e) {
        Seen& to = *static_cast<Seen*>(user);
        to.embeddings += e.kind == Event::embedding;
        to.layers += e.kind == Event::layer_output;
        to.hidden += e.kind == Event::hidden;
        if (e.kind != Event::attention_row) return true;
        to.rows++;
        double sum = 0;
        for (uint32_t i = 0; i < e.rows.dim; i++) {
            const float p = e.rows.data[i];
            sum += static_cast<double>(p);
            if (e.first_key + i > e.position && p > 0) to.worst = 1;                   // the future is invisible
        }
        to.worst = std::max(to.worst, std::fabs(1 - sum));
        return true;
    };
    CHECK(same_bits(last_logits(opened.model, o, ids), want));
    CHECK(seen.embeddings == 1);
    CHECK(seen.layers == 2);
    CHECK(seen.hidden == 1);
    CHECK(seen.rows == 2 * 4 * 40);
    CHECK(seen.worst < 1e-5);
}

TEST_CASE("a prompt longer than the original context gives the same bits for every batch of generate()")
{
    Config c = tiny_config();
    c.rope_long_from = 20;
    Slots s;
    s.rope_rows = 2;
    const Opened opened(make_model(c, s, 1));
    const auto ids = random_tokens(30, 64);
    std::vector<float> want;
    for (const uint32_t batch : {30u, 64u, 7u, 1u}) {
        Options o = plain_options(40);
        o.batch = batch;
        Started run(opened.model, o);
        GenerateOptions g;
        g.max_tokens = 1;
        g.sampler.temperature = 0;
        REQUIRE_OK(generate(
            run.session, ids.data(), 30, g, [](void*, const char*, uint32_t) { return true; }, nullptr));
        if (want.empty()) want = last_row(run.session);
        INFO("batch " << batch);
        CHECK(same_bits(last_row(run.session), want));
    }
}

TEST_CASE("a decoder that pools gives the same bits for every batch, or is refused")
{
    for (const Pooling pooling : {Pooling::first, Pooling::mean, Pooling::last}) {
        TestModel m = tiny_llama();
        m.main.pooling = pooling;
        const AlignedBytes bytes = m.checkpoint();
        Model model;
        if (!open(bytes.data, bytes.size, &model)) continue;
        const auto ids = random_tokens(20, 64);
        Options o = plain_options(20);
        const std::vector<float> want = last_logits(model, o, ids);
        o.batch = 6;
        INFO("pooling " << static_cast<int>(pooling));
        CHECK(same_bits(last_logits(model, o, ids), want));
    }
}

// The sums of these logits' bits are part of the promise: whoever builds the header, for whatever machine, gets them.
TEST_CASE("the bits of small models are the committed ones")
{
    struct Case {
        const char* name;
        TestModel model;
        DType type, cache;
        uint64_t checksum;
    };
    Config gpt = small_config(20, 43, 2, 4, 4, 5, 37);
    gpt.rope_dim = 0;
    gpt.norm = NormKind::layer;
    gpt.activation = Activation::gelu;
    Slots slots;
    slots.norm_shift = slots.attention_bias = slots.output_bias = slots.ffn_bias = true;
    slots.gate = false;
    slots.positions = 150;
    Config experts = tiny_config();
    experts.n_experts = 4;
    experts.n_experts_active = 2;
    experts.attn_softcap = 3;
    experts.window = 20;
    const TestModel llama = make_model(small_config(20, 43, 2, 4, 2, 8, 37), Slots{}, 21);
    const Case cases[] = {
        {"Llama f32", llama, DType::f32, DType::f32, 0xb21a52a7de6f79e3u},
        {"Llama f16", llama, DType::f16, DType::f16, 0x0ef6f874cbcf340eu},
        {"Llama bf16", llama, DType::bf16, DType::f16, 0xb633f19a37661e18u},
        {"Llama q8_0", llama, DType::q8_0, DType::f16, 0x6e255107eeb5c315u},
        {"Llama q4_0", llama, DType::q4_0, DType::f16, 0x3d3a0f619a000867u},
        {"Llama q4_1", llama, DType::q4_1, DType::f32, 0x85f34994a68c77e0u},
        {"GPT f32", make_model(gpt, slots, 26), DType::f32, DType::f32, 0x023329646cdb9ae6u},
        {"experts q8_0", make_model(experts, Slots{}, 27), DType::q8_0, DType::f16, 0xe782df4b2ee18638u},
    };
    for (const Case& c : cases) {
        const Opened opened(c.model, c.type);
        const auto ids = random_tokens(140, c.model.main.vocab_size);
        const std::vector<float> logits = all_logits(opened.model, plain_options(140, c.cache), ids, 140);
        uint64_t hash = 0xcbf29ce484222325u;
        for (const float x : logits) { // byte by byte, so that the order of a word's bytes does not matter
            const uint32_t u = bits_of(x);
            const unsigned char b[4] = {static_cast<unsigned char>(u), static_cast<unsigned char>(u >> 8),
                                        static_cast<unsigned char>(u >> 16), static_cast<unsigned char>(u >> 24)};
            hash = fnv1a(b, 4, hash);
        }
        INFO(std::string(c.name));
        CHECK(hash == c.checksum);
    }
}
