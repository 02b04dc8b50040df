// Checkpoints that are damaged, cut, forged or badly placed; session memory to the byte; what calls refuse. Any bytes
// give a result or a Status: the same tests run under the sanitizers.
#include "helpers.hpp"

#include <algorithm>
#include <numeric>
#if defined(__unix__)
#include <sys/stat.h>
#endif

using namespace test;
using namespace transformer;

namespace {

bool keep_going(void*, const char*, uint32_t) { return true; }

// Exactly n bytes, so that a sanitizer sees a read behind them.
AlignedBytes copy_of(const AlignedBytes& from, uint64_t n)
{
    AlignedBytes to(n);
    std::memcpy(to.data, from.data, static_cast<size_t>(std::min(n, from.size)));
    return to;
}
AlignedBytes copy_of(const AlignedBytes& from) { return copy_of(from, from.size); }
Status open_bytes(const AlignedBytes& bytes)
{
    Model model;
    return open(bytes.data, bytes.size, &model);
}
Status open_model(const TestModel& m) { return open_bytes(m.checkpoint()); }
bool is(const Status& s, Code code, const std::string& field) { return s.code == code && field == s.field && *s.text; }
#define CHECK_STATUS(expression, code, field)                         \
    do {                                                              \
        const Status checked_ = (expression);                         \
        CHECK_MESSAGE(is(checked_, code, field), words(checked_));    \
    } while (false)

constexpr uint64_t table_at = 576;
uint32_t entries_of(const AlignedBytes& bytes) { return weights::load_u32(bytes.data + 12); }
unsigned char* entry(const AlignedBytes& bytes, uint32_t i) { return bytes.data + table_at + uint64_t{i} * 32; }

// Open, and if that succeeds run everything that there is to run. True if it was opened.
bool exercise(const AlignedBytes& bytes)
{
    Model model;
    const Status opened = open(bytes.data, bytes.size, &model);
    if (!opened) {
        CHECK(*opened.text);
        return false;
    }
    const Config& c = model.main.config;
    const bool encoder = model.encoder.config.n_layers != 0;
    Options o = plain_options(20, DType::f16);
    o.source_capacity = 12;
    o.batch = 7;
    o.slices = 2;
    const uint64_t size = session_size(model, o);
    if (size > 1u << 24) return true;                          // an honest demand, but not one for a test
    AlignedBytes memory(size);
    std::memset(memory.data, 0xff, static_cast<size_t>(size));
    Session s;
    if (!start(model, o, memory.data, memory.size, &s)) return true;
    int32_t ids[9];
    for (uint32_t i = 0; i < 9; i++) ids[i] = c.vocab_size ? static_cast<int32_t>(i * 7 % c.vocab_size) : 0;
    const uint8_t mask[12] = {1, 0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1};
    const std::vector<float> rows(size_t{12} * c.dim, 0.5f);
    const auto input = [&](const Config& k, std::vector<float>& features) {
        Input in;
        in.count = 9;
        in.mask = mask;
        if (k.n_features) {
            features.resize(size_t{k.n_features} * k.n_frames, 0.25f);
            in.features = features.data();
            in.count = k.n_frames;
            in.mask = nullptr;
        } else if (k.vocab_size) in.tokens = ids;
        else in.rows = rows.data();
        return in;
    };
    std::vector<float> more, features;
    const Input in = input(c, features);
    if (encoder || !is_causal(c)) (void)encode(s, input(encoder ? model.encoder.config : c, more), nullptr);
    if (c.flags & flag_cross) (void)set_memory(s, rows.data(), 12, mask);
    float* logits = nullptr;
    (void)forward(s, in, &logits);
    (void)forward(s, in, &logits);
    (void)rewind(s, 3);
    GenerateOptions g;
    g.max_tokens = 4;
    (void)generate(s, ids, 9, g, keep_going, nullptr);
    const char text[] = "The cat <s> sat\xe2\x96\x81on\xff the \xf0\x9f\xa6\x99 mat.";
    std::vector<uint32_t> work(static_cast<size_t>(tokenize_size(model.vocabulary, sizeof text)) / 4 + 1);
    int32_t out[64];
    uint32_t n = 0;
    (void)tokenize(model.vocabulary, text, sizeof text - 1, {}, work.data(), work.size() * 4, out, 64, &n);
    Decoder decoder;
    for (int32_t id = -1; id < 300; id++) (void)detokenize(model.vocabulary, decoder, id, keep_going, nullptr);
    (void)detokenize_flush(decoder, keep_going, nullptr);
    (void)is_stop(model.vocabulary, 3);
    return true;
}

weights::VocabularySource small_vocabulary()
{
    weights::VocabularySource v;
    v.kind = VocabularyKind::sentencepiece_bpe;
    v.flags = vocabulary_add_bos | vocabulary_dummy_prefix | vocabulary_byte_fallback;
    v.tokens = {"<unk>", "<s>", "</s>", "a",  "t",  "at",   " ", "The", " c", " cat",
                "h",     "e",   "T",    "he", "Th", "\xe7", "s", "sat", "sa", "."};
    v.types.assign(v.tokens.size(), TokenType::normal);
    v.types[0] = TokenType::unknown;
    v.types[1] = v.types[2] = TokenType::control;
    v.types[15] = TokenType::byte;
    for (size_t i = 0; i < v.tokens.size(); i++) v.scores.push_back(-static_cast<float>(i));
    v.bos = 1;
    v.eos = 2;
    v.unknown = 0;
    v.stop = {2};
    v.chat_template = "{{ messages }}";
    v.labels = "yes\nno";
    return v;
}

// A few checkpoints of less than 16 KiB that have, together, every kind of tensor.
std::vector<TestModel> small_models()
{
    std::vector<TestModel> list;
    Config c = small_config(8, 12, 2, 2, 1, 4, 20);
    c.n_experts = 3;
    c.n_experts_active = 2;
    c.shared_hidden_dim = 5;
    Slots s;
    s.sinks = s.attention_bias = s.norm_shift = s.router_bias = s.shared_router = true;
    s.qk = QkNorm::one_head;
    s.rope_rows = 2;
    s.layer_flags = {layer_local, layer_rope_local};
    c.window = 6;
    list.push_back(make_model(c, s, 1));
    list.back().vocabulary = small_vocabulary();

    c = small_config(8, 12, 1, 2, 1, 7, 20);
    c.rope_dim = 2;
    c.kv_lora_rank = c.v_head_dim = 5;
    c.nope_head_dim = 40;
    c.mla_v_head_dim = 3;
    c.q_lora_rank = 6;
    list.push_back(make_model(c, Slots{}, 2));
    list.back().store_as(DType::q8_0);

    c = small_config(8, 12, 1, 2, 2, 4, 20);
    c.flags = 0;
    c.rope_dim = 0;
    c.n_types = 2;
    c.embedding_dim = 6;
    c.relative_distance = 3;
    c.pooling = Pooling::mean;
    s = Slots{};
    s.relative_keys = s.embedding_norm = s.head_norm = s.head_bias = s.norm_shift = true;
    s.positions = 20;
    s.head_dense = 7;
    list.push_back(make_model(c, s, 3));

    c = small_config(8, 12, 1, 2, 1, 4, 20);
    c.flags |= flag_cross;
    Config e = small_config(8, 10, 1, 2, 2, 4, 0);
    e.flags = e.n_outputs = 0;
    e.n_features = 3;
    e.n_frames = 10;
    s = Slots{};
    s.alibi = true;
    s.positions = 25;
    Slots t;
    t.positions = 5;
    t.relative_bias = true;
    e.relative_distance = 4;
    list.push_back(make_model(c, s, 4, e, t));
    for (auto& w : list.back().tensors) w.second.stored = DType::q4_1;
    return list;
}

// Memory that ends at a page that nobody may touch.
#ifdef TRANSFORMER_HAS_MMAP
class Guarded {
public:
    explicit Guarded(uint64_t n)
    {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)),
                     whole = (static_cast<size_t>(n) + page - 1) / page * page;
        size_ = whole + page;
        base_ = static_cast<unsigned char*>(
            mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        REQUIRE(base_ != MAP_FAILED);
        REQUIRE(mprotect(base_ + whole, page, PROT_NONE) == 0);
        data = base_ + whole - n;
    }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
    ~Guarded() { munmap(base_, size_); }
    void read_only() const
    {
        REQUIRE(mprotect(base_, size_ - static_cast<size_t>(sysconf(_SC_PAGESIZE)), PROT_READ) == 0);
    }
    unsigned char* data;

private:
    unsigned char* base_;
    size_t size_;
};
#endif

}  // namespace

// ---- Damage ---------------------------------------------------------------------------------------------------------

TEST_CASE("every prefix of a checkpoint is refused, and with a corrected length gives a result or a Status")
{
    for (const TestModel& m : small_models()) {
        const AlignedBytes whole = m.checkpoint();
        REQUIRE(whole.size < 20480);
        REQUIRE(exercise(copy_of(whole)));
        uint32_t opened = 0;
        for (uint64_t n = 0; n < whole.size; n++) {
            AlignedBytes part = copy_of(whole, n);
            opened += open_bytes(part).code == Code::ok;
            if (n < 24) continue;
            weights::store_u64(part.data + 16, n);             // the header agrees: the tensors must be found out
            if (exercise(part)) CHECK(n > whole.size - 64);    // but for the padding at the end
        }
        CHECK(opened == 0);
        CHECK(is(transformer::open(nullptr, 100, std::vector<Model>(1).data()), Code::not_a_checkpoint, "magic"));
    }
}

TEST_CASE("bytes behind the end are refused")
{
    const AlignedBytes whole = tiny_llama().checkpoint();
    AlignedBytes longer(whole.size + 64);
    std::memset(longer.data, 0, static_cast<size_t>(longer.size));
    std::memcpy(longer.data, whole.data, static_cast<size_t>(whole.size));
    const Status status = open_bytes(longer);
    CHECK_STATUS(status, Code::truncated, "size");
    CHECK(status.where == whole.size);
}

TEST_CASE("ten thousand random changes of bytes give a result or a Status")
{
    Random r{99};
    uint32_t opened = 0;
    const std::vector<TestModel> models = small_models();
    for (size_t k = 0; k < models.size(); k++) {
        const AlignedBytes whole = models[k].checkpoint();
        const uint32_t n = entries_of(whole);
        const uint64_t front =
            weights::load_u64(whole.data + 24) + weights::load_u64(whole.data + 32); // header, table, vocabulary
        for (uint32_t i = 0; i < 2500; i++) {
            AlignedBytes bytes = copy_of(whole);
            for (uint32_t changes = r.between(1, 3); changes; changes--) {
                uint64_t at = r.below(static_cast<uint32_t>(whole.size));
                if (r.chance(2)) at = r.below(static_cast<uint32_t>(front));
                if (r.chance(3)) at = table_at + r.below(n * 32);
                if (r.chance(4)) at = 64 + r.below(512);
                if (r.chance(2)) bytes.data[at] ^= static_cast<unsigned char>(1u << r.below(8));
                else bytes.data[at] = static_cast<unsigned char>(r.chance(2) ? 0xff * r.below(2) : r.below(256));
            }
            opened += exercise(bytes);
        }
    }
    CHECK(opened > 1000);                                      // changed weights are no error
    CHECK(opened < 9000);
}

TEST_CASE("every word of the header, both configurations and the table may hold anything")
{
    const uint32_t extremes[] = {0, 1, 2, 3, 64, 128, 255, 65536, 1u << 24, (1u << 24) + 1, 1u << 30,
                                 0x7fffffffu, 0x80000000u, 0xffffffffu, 0x3f800000u, 0x7f800000u, 0x7fc00000u};
    for (const TestModel& m : small_models()) {
        const AlignedBytes whole = m.checkpoint();
        const uint64_t end = table_at + uint64_t{entries_of(whole)} * 32;
        for (uint64_t at = 8; at < end; at += 4) {
            const uint32_t before = weights::load_u32(whole.data + at);
            for (const uint32_t value : extremes) {
                const AlignedBytes bytes = copy_of(whole);
                weights::store_u32(bytes.data + at, value);
                (void)exercise(bytes);
            }
            for (const uint32_t value : {before + 1, before - 1, before * 2, before / 2}) {
                const AlignedBytes bytes = copy_of(whole);
                weights::store_u32(bytes.data + at, value);
                (void)exercise(bytes);
            }
        }
    }
}

// ---- Fields ---------------------------------------------------------------------------------------------------------

TEST_CASE("every field of the configuration that is out of range is named")
{
    struct Wrong {
        const char* field;
        void (*set)(Config&);
    };
    const Wrong list[] = {
        {"dim", [](Config& c) { c.dim = 0; }},
        {"dim", [](Config& c) { c.dim = (1u << 24) + 1; }},
        {"dim", [](Config& c) { c.dim = 0xffffffffu; }},
        {"hidden_dim", [](Config& c) { c.hidden_dim = 0; }},
        {"hidden_dim", [](Config& c) { c.hidden_dim = 0x80000000u; }},
        {"n_layers", [](Config& c) { c.n_layers = 0; }},
        {"n_layers", [](Config& c) { c.n_layers = 65535; }},
        {"n_heads", [](Config& c) { c.n_heads = 0; }},
        {"n_heads", [](Config& c) { c.n_heads = 65537; }},
        {"n_kv_heads", [](Config& c) { c.n_kv_heads = 0; }},
        {"n_kv_heads", [](Config& c) { c.n_kv_heads = 3; }},
        {"n_kv_heads", [](Config& c) { c.n_kv_heads = 8; }},
        {"n_kv_heads", [](Config& c) { c.n_heads = 3; }},
        {"head_dim", [](Config& c) { c.head_dim = 0; }},
        {"head_dim", [](Config& c) { c.head_dim = 65537; }},
        {"head_dim", [](Config& c) { c.n_heads = c.n_kv_heads = 65536, c.head_dim = 65536; }},
        {"v_head_dim", [](Config& c) { c.v_head_dim = 0; }},
        {"v_head_dim", [](Config& c) { c.v_head_dim = 0xffffffffu; }},
        {"vocab_size", [](Config& c) { c.vocab_size = (1u << 24) + 1; }},
        {"n_outputs", [](Config& c) { c.n_outputs = 0x7fffffff; }},
        {"max_seq_len", [](Config& c) { c.max_seq_len = 0; }},
        {"max_seq_len", [](Config& c) { c.max_seq_len = 0xffffffffu; }},
        {"embedding_dim", [](Config& c) { c.embedding_dim = 0; }},
        {"embedding_dim", [](Config& c) { c.embedding_dim = 0x10000000u; }},
        {"n_types", [](Config& c) { c.n_types = 0xffffffffu; }},
        {"n_experts", [](Config& c) { c.n_experts = 0x10000000u; }},
        {"n_experts_active", [](Config& c) { c.n_experts = 4; }},
        {"n_experts_active", [](Config& c) { c.n_experts_active = 1; }},
        {"n_experts_active", [](Config& c) { c.n_experts = 4, c.n_experts_active = 5; }},
        {"dense_hidden_dim", [](Config& c) { c.dense_hidden_dim = 0xffffffffu; }},
        {"shared_hidden_dim", [](Config& c) { c.shared_hidden_dim = 0xffffffffu; }},
        {"n_groups", [](Config& c) { c.n_experts = 4, c.n_experts_active = 1, c.n_groups = 3; }},
        {"n_groups", [](Config& c) { c.n_groups = 2; }},
        {"n_groups_active",
         [](Config& c) { c.n_experts = 4, c.n_experts_active = 1, c.n_groups = 2, c.n_groups_active = 3; }},
        {"q_lora_rank", [](Config& c) { c.q_lora_rank = 0xffffffffu; }},
        {"kv_lora_rank", [](Config& c) { c.kv_lora_rank = 65537; }},
        {"kv_lora_rank", [](Config& c) { c.kv_lora_rank = 4; }},
        {"nope_head_dim", [](Config& c) { c.nope_head_dim = 0xffffffffu; }},
        {"mla_v_head_dim", [](Config& c) { c.mla_v_head_dim = 0xffffffffu; }},
        {"rope_dim", [](Config& c) { c.rope_dim = 3; }},
        {"rope_dim", [](Config& c) { c.rope_dim = 6; }},
        {"rope_dim", [](Config& c) { c.rope_dim = 0xfffffffeu; }},
        {"rope_long_from", [](Config& c) { c.rope_long_from = 0xffffffffu; }},
        {"window", [](Config& c) { c.window = 0xffffffffu; }},
        {"window_ahead", [](Config& c) { c.window_ahead = 0xffffffffu; }},
        {"chunk", [](Config& c) { c.chunk = 0xffffffffu; }},
        {"relative_distance", [](Config& c) { c.relative_distance = 0x80000000u; }},
        {"n_features", [](Config& c) { c.n_features = 65537; }},
        {"n_frames", [](Config& c) { c.n_features = 4; }},
        {"n_frames", [](Config& c) { c.n_frames = 4; }},
        {"n_features", [](Config& c) { c.n_features = 4, c.n_frames = 4; }},
        {"norm", [](Config& c) { c.norm = static_cast<NormKind>(2); }},
        {"activation", [](Config& c) { c.activation = static_cast<Activation>(9); }},
        {"head_activation", [](Config& c) { c.head_activation = static_cast<Activation>(77); }},
        {"router", [](Config& c) { c.router = static_cast<Router>(2); }},
        {"pooling", [](Config& c) { c.pooling = static_cast<Pooling>(4); }},
        {"flags", [](Config& c) { c.flags = 1u << 20; }},
        {"decoder_start", [](Config& c) { c.decoder_start = 65; }},
        {"rope_theta", [](Config& c) { c.rope_theta = 0; }},
        {"rope_theta", [](Config& c) { c.rope_theta = -1; }},
        {"norm_eps", [](Config& c) { c.norm_eps = -1e-9f; }},
        {"qk_norm_eps", [](Config& c) { c.qk_norm_eps = -1; }},
        {"temperature_floor", [](Config& c) { c.temperature_floor = 0.5f; }},
        {"temperature_floor", [](Config& c) { c.temperature_floor = -1; }},
        {"reserved", [](Config& c) { c.reserved[0] = 1; }},
        {"reserved", [](Config& c) { c.reserved[10] = 0x80000000u; }},
    };
    for (const Wrong& wrong : list) {
        TestModel m = tiny_llama();
        wrong.set(m.main);
        CHECK_STATUS(open_model(m), Code::bad_config, wrong.field);
    }
    const char* const numbers[] = {"norm_eps",          "qk_norm_eps",       "rope_theta",    "rope_scale",
                                   "attn_scale",        "attn_softcap",      "logit_softcap", "logit_scale",
                                   "embedding_scale",   "residual_scale",    "qkv_clip",      "routed_scale",
                                   "temperature_floor", "temperature_scale", "mlp_clamp",     "mlp_alpha"};
    for (size_t i = 0; i < 16; i++)
        for (const float value : {HUGE_VALF, -HUGE_VALF, float_of(0x7fc00000u), float_of(0xff800001u)}) {
            TestModel m = tiny_llama();
            std::memcpy(&m.main.norm_eps + i, &value, 4);      // the numbers stand one after the other
            CHECK_STATUS(open_model(m), Code::bad_config, numbers[i]);
        }
}

TEST_CASE("the encoder's configuration is checked as the decoder's is")
{
    const TestModel good = small_models()[3];
    REQUIRE(open_model(good).code == Code::ok);
    TestModel m = good;
    m.encoder.n_kv_heads = 3;
    CHECK_STATUS(open_model(m), Code::bad_config, "n_kv_heads");
    m = good;
    m.encoder.dim = 9;
    CHECK(open_model(m).code == Code::bad_config);
    m = good;
    m.encoder.flags = flag_causal;
    CHECK(open_model(m).code == Code::bad_config);
    m = good;
    m.main.flags = flag_causal;                                // an encoder, but nothing that looks at it
    CHECK(open_model(m).code != Code::ok);
    m = good;
    m.main.flags = flag_cross;
    CHECK(open_model(m).code == Code::bad_config);
    m = good;
    m.encoder.n_layers = 0;                                    // its tensors belong to nothing
    CHECK(open_model(m).code == Code::bad_tensor);
}

TEST_CASE("sizes whose product or sum wraps are refused")
{
    for (const auto& [dim, hidden, layers, vocab] :
         {std::make_tuple(65536u, 65536u, 4u, 64u), std::make_tuple(0x7fffffffu, 0x7fffffffu, 4u, 64u),
          std::make_tuple(16u, 40u, 2u, 0x40000000u), std::make_tuple(1u << 24, 1u << 24, 4096u, 1u << 24),
          std::make_tuple(0x40000000u, 16u, 2u, 4u)}) {
        TestModel m = tiny_llama();
        m.main.dim = m.main.embedding_dim = dim;
        m.main.hidden_dim = hidden;
        m.main.n_layers = layers;
        m.main.vocab_size = m.main.n_outputs = vocab;
        CHECK_FALSE(open_model(m));
    }
    // shapes that agree with the configuration, and data that would end behind the file or wrap around to its front
    const AlignedBytes whole = tiny_llama().checkpoint();
    for (uint32_t i = 0; i < entries_of(whole); i++)
        for (const uint64_t offset : {whole.size, whole.size - 64, uint64_t{1} << 32, uint64_t{1} << 63,
                                      UINT64_MAX - 63, UINT64_MAX & ~uint64_t{63}, UINT64_MAX}) {
            const AlignedBytes bytes = copy_of(whole);
            weights::store_u64(entry(bytes, i) + 24, offset);
            const Status status = open_bytes(bytes);
            if (offset == whole.size - 64 && status.code == Code::ok) continue;       // a norm is not longer than this
            CHECK((status.code == Code::truncated || status.code == Code::bad_tensor));
            CHECK(std::string(status.field) == role_name(entry(bytes, i)[0]));
        }
    // every tensor as near to the end of the file as it fits, and 64 bytes nearer; offsets that are not multiples of 64
    for (const TestModel& model : small_models()) {
        const AlignedBytes bytes = model.checkpoint();
        for (uint32_t i = 0; i < entries_of(bytes); i++) {
            unsigned char* const e = entry(bytes, i);
            const uint64_t before = weights::load_u64(e + 24);
            const uint64_t need =
                matrix_bytes(static_cast<DType>(e[1]), weights::load_u32(e + 8), weights::load_u32(e + 12)) *
                weights::load_u32(e + 16);
            const uint64_t last = (bytes.size - need) / 64 * 64;
            weights::store_u64(e + 24, last + 64);
            CHECK_STATUS(open_bytes(bytes), Code::truncated, role_name(e[0]));
            for (const uint64_t offset : {before + 4, before + 32, before - 1}) {
                weights::store_u64(e + 24, offset);
                CHECK_STATUS(open_bytes(bytes), Code::bad_tensor, role_name(e[0]));
            }
            weights::store_u64(e + 24, last);
            const Status fits = open_bytes(bytes);
            CHECK((fits.code == Code::ok || std::string(fits.field) == "relative_rows")); // whose numbers are looked at
            weights::store_u64(e + 24, before);
        }
    }
    // as many tensors as the rest of the file has room for, and more
    for (const uint32_t n :
         {0x7fffffffu, 0xffffffffu, 0x08000000u, static_cast<uint32_t>((whole.size - table_at) / 32 + 1)}) {
        const AlignedBytes bytes = copy_of(whole);
        weights::store_u32(bytes.data + 12, n);
        CHECK_STATUS(open_bytes(bytes), Code::truncated, "tensors");
    }
    for (const uint32_t n :
         {entries_of(whole) + 1, entries_of(whole) - 1, static_cast<uint32_t>((whole.size - table_at) / 32)}) {
        const AlignedBytes bytes = copy_of(whole);
        weights::store_u32(bytes.data + 12, n);
        CHECK_FALSE(open_bytes(bytes));
    }
    // the vocabulary section
    TestModel m = tiny_llama();
    m.vocabulary = small_vocabulary();
    const AlignedBytes with = m.checkpoint();
    for (const uint64_t value :
         {with.size, with.size + 1, uint64_t{1} << 63, UINT64_MAX, UINT64_MAX - 3, UINT64_MAX - with.size})
        for (const uint64_t at : {24u, 32u}) {
            const AlignedBytes bytes = copy_of(with);
            weights::store_u64(bytes.data + at, value);
            CHECK_STATUS(open_bytes(bytes), Code::truncated, "vocabulary");
        }
}

TEST_CASE("a session's size does not wrap, however large the model")
{
    // The largest that the ranges allow; what plan() says is held against the same sum in floating point.
    for (const bool cross : {false, true})
        for (const uint32_t capacity : {1u << 10, 1u << 20, 1u << 24}) {
            Config c = small_config(1u << 24, 1u << 24, 1024, 256, 256, 65536, 1u << 24);
            c.n_experts = 65536;
            if (cross) c.flags |= flag_cross;
            Options o = plain_options(capacity);
            o.batch = capacity;
            o.all_logits = true;
            const Plan p = plan(c, c, o);
            long double sum = 0;
            for (uint32_t i = 0; i < n_regions; i++) {
                CHECK(p.at[i + 1] >= p.at[i]);
                sum += static_cast<long double>(p.at[i + 1] - p.at[i]);
            }
            const long double cache = static_cast<long double>(capacity) * (65536 + 65536) * 256 * 4 * 1024;
            CHECK(sum >= cache * (cross ? 2 : 1));
            CHECK(static_cast<long double>(p.at[n_regions]) >= cache * (cross ? 2 : 1));
        }
}

// ---- The table ------------------------------------------------------------------------------------------------------

TEST_CASE("tensors that are missing are named")
{
    for (const TestModel& m : small_models())
        for (const auto& t : m.tensors) {
            const Role role = static_cast<Role>(t.first >> 1 & 0x7f);
            const bool bias = t.first & 1;
            TestModel without = m;
            without.tensors.erase(t.first);
            if (!bias) without.tensors.erase(t.first | 1);     // its bias goes with it
            const Status status = open_model(without);
            switch (role) {
            case Role::token_embedding: case Role::lm_head: case Role::embedding_proj: case Role::wq: case Role::wk:
            case Role::wv: case Role::wo: case Role::wq_a: case Role::wkv_a: case Role::wk_b: case Role::wv_b:
            case Role::cross_wq: case Role::cross_wk: case Role::cross_wv: case Role::cross_wo: case Role::up:
            case Role::down: case Role::router: case Role::shared_down: case Role::relative_rows:
                if (bias) CHECK(status.code == Code::ok);
                else CHECK_STATUS(status, Code::missing_tensor, role_name(static_cast<uint32_t>(role)));
                break;
            case Role::conv1: case Role::conv2:
                if (!bias) CHECK_STATUS(status, Code::missing_tensor, "conv1, conv2");
                break;
            case Role::head_dense:                             // then the rest of the head does not fit
                if (!bias) CHECK(status.code == Code::bad_tensor);
                break;
            default: INFO(std::string(role_name(static_cast<uint32_t>(role)))); CHECK(status.code == Code::ok);
            }
        }
}

TEST_CASE("tensors that are there twice, out of order, or in a place that does not exist are refused and named")
{
    const AlignedBytes whole = small_models()[0].checkpoint();
    const uint32_t n = entries_of(whole);
    for (uint32_t i = 0; i + 1 < n; i++) {
        AlignedBytes bytes = copy_of(whole);
        std::memcpy(entry(bytes, i + 1), entry(bytes, i), 32);
        CHECK_STATUS(open_bytes(bytes), Code::bad_tensor, role_name(entry(whole, i)[0]));
        bytes = copy_of(whole);
        std::swap_ranges(entry(bytes, i), entry(bytes, i + 1), entry(bytes, i + 1));
        CHECK_FALSE(open_bytes(bytes));
    }
    for (uint32_t i = 0; i < n; i++)
        for (const auto& [at, value] : {std::make_pair(0, 60),
                                        {0, 0x7f},
                                        {0, 0xff},
                                        {1, 7},
                                        {1, 255},
                                        {2, 1},
                                        {2, 2},
                                        {2, 255},
                                        {5, 1},
                                        {5, 255}}) {
            const AlignedBytes bytes = copy_of(whole);
            entry(bytes, i)[at] = static_cast<unsigned char>(value);
            const Status status = open_bytes(bytes);
            CHECK_FALSE(status);
            CHECK(*status.field);
        }
}

TEST_CASE("a tensor of another shape, type or place than its role asks for is refused and named")
{
    for (const TestModel& m : small_models())
        for (const auto& t : m.tensors) {
            const uint32_t role = static_cast<uint32_t>(t.first >> 1 & 0x7f);
            const auto refused = [&](const char* what, void (*change)(Weights&)) {
                TestModel wrong = m;
                Weights& w = wrong.tensors.at(t.first);
                change(w);
                w.values.assign(size_t{w.rows} * w.cols * w.count, 0.0f);
                const Status status = open_model(wrong);
                // roles whose length is free: it decides how long a session may be, or how wide the head is
                const bool free_rows = role == static_cast<uint32_t>(Role::position_embedding) ||
                                       role == static_cast<uint32_t>(Role::head_dense) ||
                                       role == static_cast<uint32_t>(Role::rel_key) ||
                                       role == static_cast<uint32_t>(Role::rel_query);
                if (status.code == Code::ok) {
                    INFO(std::string(role_name(role)) << ", " << std::string(what));
                    CHECK(free_rows);
                } else CHECK(*status.field);
            };
            refused("one row more", [](Weights& w) { w.rows++; });
            refused("one column more", [](Weights& w) { w.cols++; });
            refused("one matrix more", [](Weights& w) { w.count++; });
            if (t.second.cols > 1) refused("one column less", [](Weights& w) { w.cols--; });
            refused("turned", [](Weights& w) {
                if (w.rows == w.cols) w.rows++;
                std::swap(w.rows, w.cols);
            });
        }
    // norms, biases and tables are f32; matrices are anything but u8
    const AlignedBytes whole = small_models()[0].checkpoint();
    for (uint32_t i = 0; i < entries_of(whole); i++) {
        const unsigned char* const e = entry(whole, i);
        const Role role = static_cast<Role>(e[0] & 0x7f);
        const bool bytes_table = role == Role::layer_flags,
                   row = weights::load_u32(e + 8) == 1 || role == Role::rope_freqs;
        for (uint32_t type = 0; type < 7; type++) {
            AlignedBytes bytes = copy_of(whole);
            entry(bytes, i)[1] = static_cast<unsigned char>(type);
            const Status status = open_bytes(bytes);
            if (bytes_table) CHECK((status.code == Code::ok) == (type == 6));
            else if (row && role != Role::shared_router) CHECK((status.code == Code::ok) == (type == 0));
            else if (type == 6) CHECK_FALSE(status);
            else if (status.code != Code::ok)
                CHECK(status.code == Code::truncated); // tiles are larger than narrow rows
        }
    }
}

TEST_CASE("a bias must be as long as its weight asks for")
{
    for (const TestModel& m : small_models())
        for (const auto& t : m.tensors) {
            if (!(t.first & 1)) continue;
            const uint32_t role = static_cast<uint32_t>(t.first >> 1 & 0x7f);
            for (const auto& shape : {std::make_pair(1u, 1u),
                                      {1u, 3u},
                                      {1u, 4u},
                                      {1u, 8u},
                                      {1u, 16u},
                                      {2u, 4u},
                                      {4u, 8u},
                                      {t.second.rows, t.second.cols + 1}}) {
                if (shape.first == t.second.rows && shape.second == t.second.cols) continue;
                TestModel wrong = m;
                Weights& w = wrong.tensors.at(t.first);
                w.rows = shape.first;
                w.cols = shape.second;
                w.values.assign(size_t{w.rows} * w.cols * w.count, 0.0f);
                INFO(std::string(role_name(role)) << " " << shape.first << " x " << shape.second);
                CHECK_STATUS(open_model(wrong), Code::bad_tensor, role_name(role));
            }
            TestModel alone = m;                               // a bias without its weight
            alone.tensors.erase(t.first & ~uint64_t{1});
            CHECK_FALSE(open_model(alone));
        }
}

TEST_CASE("experts must be as many as the configuration and the router say")
{
    TestModel m = small_models()[0];
    for (const Role role : {Role::gate, Role::up, Role::down}) {
        TestModel wrong = m;
        Weights& w = wrong.at(0, 1, role);
        w.count = 2;
        CHECK_FALSE(open_model(wrong));
        w.count = 1;
        CHECK_FALSE(open_model(wrong));
    }
    TestModel dense = m;                                       // one matrix each, behind a router of three
    for (const Role role : {Role::gate, Role::up, Role::down}) dense.at(0, 1, role).count = 1;
    CHECK_STATUS(open_model(dense), Code::bad_tensor, "router");
    dense.drop(0, 1, Role::router);
    dense.drop(0, 1, Role::router_bias);
    CHECK(open_model(dense).code == Code::ok);
}

TEST_CASE("rows of relative keys that do not exist are refused")
{
    for (const float row : {4.0f, 100.0f, -1.0f, 1e30f, HUGE_VALF, float_of(0x7fc00000u)}) {
        TestModel m = small_models()[2];
        m.at(0, 0, Role::relative_rows).values[3] = row;
        CHECK_STATUS(open_model(m), Code::bad_tensor, "relative_rows");
    }
}

TEST_CASE("other versions and other files are named as such")
{
    AlignedBytes bytes = tiny_llama().checkpoint();
    weights::store_u32(bytes.data + 8, 2);
    const Status status = open_bytes(bytes);
    CHECK_STATUS(status, Code::bad_version, "version");
    CHECK(status.where == 2);
    const std::string starts[] = {"GGUF",
                                  "ggjt",
                                  std::string("\x7f"
                                              "ELF",
                                              4),
                                  "PK\x03\x04",
                                  "\x89PNG",
                                  "\x1f\x8b",
                                  std::string(8, '\0'),
                                  std::string(8, '\xff'),
                                  "Once upon a time",
                                  "TRNSFRM",
                                  "TRNSFRMr",
                                  "trnsfrmr"};
    for (const std::string& start : starts) {
        AlignedBytes foreign(4096);
        std::memset(foreign.data, start[0] == '\xff' ? 0xff : 0, 4096);
        std::memcpy(foreign.data, start.data(), start.size());
        CHECK_STATUS(open_bytes(foreign), Code::not_a_checkpoint, "magic");
    }
    Model model;                                               // what was not opened cannot be started
    CHECK_FALSE(transformer::open(starts[0].data(), 4, &model));
    Session session;
    std::vector<uint32_t> memory(100000);
    CHECK_STATUS(start(model, plain_options(4), memory.data(), memory.size() * 4, &session), Code::bad_argument,
                 "model");
}

// ---- Where the bytes lie --------------------------------------------------------------------------------------------

TEST_CASE("a checkpoint at any address gives the same logits or says that it is misaligned")
{
    for (const DType type : {DType::f32, DType::f16, DType::q8_0, DType::q4_1}) {
        const AlignedBytes bytes = make_model(small_config(20, 43, 2, 4, 2, 8, 37), Slots{}, 3).checkpoint(type);
        const auto ids = random_tokens(20, 37);
        Model model;
        REQUIRE_OK(open(bytes.data, bytes.size, &model));
        for (const Isa isa : rooms()) {
            Options o = plain_options(20, DType::f16);
            o.isa = isa;
            const std::vector<float> want = last_logits(model, o, ids);
            for (uint32_t offset = 0; offset < 16; offset++) {
                AlignedBytes moved(bytes.size + offset);
                std::memcpy(moved.data + offset, bytes.data, static_cast<size_t>(bytes.size));
                Model there;
                const Status status = open(moved.data + offset, bytes.size, &there);
                if (offset % 4) {
                    CHECK_STATUS(status, Code::misaligned, "bytes");
                    CHECK(status.where == offset);
                } else {
                    REQUIRE_OK(status);
                    CHECK(same_bits(last_logits(there, o, ids), want));
                }
            }
        }
    }
}

#ifdef TRANSFORMER_HAS_MMAP
TEST_CASE("a checkpoint in read-only memory is never written, nor is anything read behind it")
{
    std::vector<TestModel> models = small_models();
    for (uint64_t seed = 50; seed < 80; seed++) {
        models.push_back(random_model(seed));
        models.back().store_as(seed % 2 ? DType::f32 : seed % 3 ? DType::q4_0 : DType::f16);
    }
    for (const TestModel& m : models) {
        const AlignedBytes bytes = m.checkpoint();
        Guarded guarded(bytes.size);
        std::memcpy(guarded.data, bytes.data, static_cast<size_t>(bytes.size));
        guarded.read_only();
        AlignedBytes view;                                     // a view for exercise(), not an owner
        view.data = guarded.data;
        view.size = bytes.size;
        CHECK(exercise(view));
        view.data = nullptr;
    }
}

TEST_CASE("a session touches no byte behind its memory")
{
    for (uint64_t seed = 100; seed < 160; seed++) {
        TestModel m = random_model(seed);
        m.store_as(seed % 2 ? DType::f32 : DType::q8_0);
        const Opened opened(m);
        const bool causal = is_causal(m.main);
        for (const Isa isa : rooms()) {
            Options o = plain_options(30, seed % 3 ? DType::f16 : DType::f32);
            o.batch = 1 + static_cast<uint32_t>(seed % 9);
            o.slices = 1 + static_cast<uint32_t>(seed % 4);
            o.isa = isa;
            const uint64_t size = session_size(opened.model, o);
            Guarded memory(size);
            Session s;
            REQUIRE_OK(start(opened.model, o, memory.data, size, &s));
            if (m.encoder.n_layers) {
                const Config& e = m.encoder;
                const std::vector<float> features(size_t{e.n_features} * e.n_frames + 1, 0.5f);
                const auto ids = random_tokens(30, std::max(e.vocab_size, 1u));
                Input in = tokens_of(ids);
                if (e.n_features) {
                    in = Input{};
                    in.features = features.data();
                    in.count = e.n_frames;
                }
                REQUIRE_OK(encode(s, in, nullptr));
            }
            REQUIRE_OK(forward(s, tokens_of(random_tokens(causal ? 29 : 30, m.main.vocab_size)), nullptr));
            if (causal) REQUIRE_OK(forward(s, tokens_of(random_tokens(1, m.main.vocab_size)), nullptr));
        }
    }
}
#endif

// ---- Session memory -------------------------------------------------------------------------------------------------

TEST_CASE("exactly the session's size works, and one byte less, nothing, or a misaligned base is a Status")
{
    std::vector<TestModel> models = {tiny_llama()};
    for (uint64_t seed = 200; seed < 220; seed++) models.push_back(random_model(seed));
    for (const TestModel& m : models) {
        const Opened opened(m);
        Options o = plain_options(17, DType::f16);
        o.batch = 5;
        o.all_logits = m.seed % 2;
        const uint64_t need = session_size(opened.model, o);
        AlignedBytes memory(need + 64);
        Session s;
        REQUIRE_OK(start(opened.model, o, memory.data, need, &s));
        CHECK(s.plan.at[n_regions] == need);
        for (const uint64_t size : {need - 1, need / 2, uint64_t{1}, uint64_t{0}}) {
            const Status status = start(opened.model, o, memory.data, size, &s);
            CHECK_STATUS(status, Code::memory_too_small, "memory");
            CHECK(status.where == need);
        }
        for (const uint32_t offset : {1u, 2u, 3u, 5u, 63u})
            CHECK_STATUS(start(opened.model, o, memory.data + offset, need, &s), Code::misaligned, "memory");
        CHECK_STATUS(start(opened.model, o, nullptr, need, &s), Code::misaligned, "memory");
        for (const uint32_t offset : {4u, 8u, 36u}) {          // slower, but the same bits
            if (!is_causal(m.main)) continue;
            o.all_logits = false;
            const auto ids = random_tokens(9, m.main.vocab_size);
            if (m.encoder.n_layers) continue;
            REQUIRE_OK(start(opened.model, o, memory.data + offset, need, &s));
            REQUIRE_OK(forward(s, tokens_of(ids), nullptr));
            CHECK(same_bits(last_row(s), last_logits(opened.model, o, ids)));
        }
    }
}

namespace {
constexpr Config constant_config(uint32_t batch_flag)
{
    Config c;
    c.dim = c.embedding_dim = 16;
    c.hidden_dim = 40;
    c.n_layers = 2;
    c.n_heads = 4;
    c.n_kv_heads = 2;
    c.head_dim = c.v_head_dim = c.rope_dim = 4;
    c.vocab_size = c.n_outputs = 64;
    c.max_seq_len = 512;
    c.flags = batch_flag;
    return c;
}
constexpr Options constant_options()
{
    Options o;
    o.capacity = 100;
    o.batch = 8;
    o.slices = 3;
    return o;
}
alignas(64) unsigned char constant_memory[session_size(constant_config(flag_causal), constant_options())];
}  // namespace

TEST_CASE("the size of a session is a constant expression that agrees with the one at run time")
{
    const Opened opened(tiny_llama());
    CHECK(session_size(opened.model, constant_options()) == sizeof constant_memory);
    Session s;
    REQUIRE_OK(start(opened.model, constant_options(), constant_memory, sizeof constant_memory, &s));
    static_assert(session_size(constant_config(0), constant_options()) > 0, "an encoder too");
    for (uint64_t seed = 300; seed < 340; seed++) {
        const TestModel m = random_model(seed, seed % 2);
        const Opened other(m);
        CHECK(session_size(m.main, constant_options()) == session_size(other.model, constant_options()));
    }
    Options small = constant_options();                        // what costs memory, and what does not
    small.capacity = 10;
    CHECK(session_size(opened.model, small) < sizeof constant_memory);
    small = constant_options();
    small.cache = DType::f32;
    CHECK(session_size(opened.model, small) > sizeof constant_memory);
    small = constant_options();
    small.isa = Isa::scalar;
    CHECK(session_size(opened.model, small) == sizeof constant_memory);
}

TEST_CASE("every region of a session is as large as its description says, and they do not overlap")
{
    for (uint64_t seed = 400; seed < 440; seed++) {
        const Config c = random_model(seed, 0).main;
        Options o = plain_options(50, seed % 2 ? DType::f16 : DType::f32);
        o.batch = 9;
        o.slices = 3;
        const Plan p = plan(c, Config{}, o);
        const uint64_t t = 9, f = std::max(std::max(c.hidden_dim, c.dense_hidden_dim), c.shared_hidden_dim);
        const uint64_t cached = round_up(50, 16) * (uint64_t{c.head_dim} + c.v_head_dim) * (seed % 2 ? 2 : 4);
        const std::pair<Region, uint64_t> least[] = {
            {region_x, 4 * t * c.dim}, {region_h, 4 * t * c.dim}, {region_y, 4 * t * c.dim},
            {region_g, c.flags & flag_parallel ? 4 * t * c.dim : 0}, {region_q, 4 * t * c.n_heads * c.head_dim},
            {region_k, 4 * t * c.n_kv_heads * c.head_dim}, {region_v, 4 * t * c.n_kv_heads * c.v_head_dim},
            {region_mixed, 4 * t * c.n_heads * c.v_head_dim}, {region_state, 4 * t * c.n_heads * 2},
            {region_up, 4 * t * f}, {region_gate, 4 * t * f}, {region_router, 4 * (t + 2) * c.n_experts},
            {region_expert, c.n_experts ? 4 * 2 * t * c.dim : 0},
            {region_quantised, t * (((std::max<uint64_t>(c.dim, f) + 31) / 32) * sizeof(Group)
                                    + ((std::max<uint64_t>(c.dim, f) + 31) / 32 / 3 + 1) * sizeof(Residual))},
            {region_rope, 4 * 2 * t * c.rope_dim},
            {region_pieces, 4 * 8 * (3 * 8 * (130 + uint64_t{c.v_head_dim}) + 3 * 2 * 32 * (c.v_head_dim + uint64_t{2}))},
            {region_logits, 4 * uint64_t{c.n_outputs}}, {region_cache, c.n_layers * c.n_kv_heads * cached}};
        for (const auto& r : least) {
            INFO("region " << static_cast<int>(r.first));
            CHECK(p.at[r.first + 1] >= p.at[r.first] + r.second);
            CHECK(p.at[r.first] % 64 == 0);
        }
    }
}

TEST_CASE("a context shorter than the model was trained for costs less memory and gives the same logits")
{
    TestModel m = tiny_llama();
    m.main.max_seq_len = 1u << 20;
    const Opened opened(m);
    CHECK(session_size(opened.model, plain_options(64)) < 100000);
    CHECK(session_size(opened.model, Options{}) < 1000000);    // the default does not follow the training length
    const auto ids = random_tokens(4, 64);
    CHECK(
        same_bits(last_logits(opened.model, plain_options(4), ids), last_logits(opened.model, plain_options(64), ids)));
}

TEST_CASE("options that make no sense are named")
{
    const Opened opened(tiny_llama());
    std::vector<uint32_t> memory(1000000);
    const auto with = [&](void (*set)(Options&)) {
        Options o = plain_options(16);
        set(o);
        Session s;
        return start(opened.model, o, memory.data(), memory.size() * 4, &s);
    };
    CHECK(with([](Options&) {}).code == Code::ok);
    CHECK_STATUS(with([](Options& o) { o.capacity = 0; }), Code::bad_argument, "options.capacity");
    CHECK_STATUS(with([](Options& o) { o.capacity = 0xffffffffu; }), Code::bad_argument, "options.capacity");
    CHECK_STATUS(with([](Options& o) { o.source_capacity = 0xffffffffu; }), Code::bad_argument,
                 "options.source_capacity");
    CHECK_STATUS(with([](Options& o) { o.batch = 0; }), Code::bad_argument, "options.batch");
    CHECK_STATUS(with([](Options& o) { o.batch = 0xffffffffu; }), Code::bad_argument, "options.batch");
    CHECK_STATUS(with([](Options& o) { o.slices = 0xffffffffu; }), Code::bad_argument, "options.slices");
    CHECK_STATUS(with([](Options& o) { o.cache = DType::q4_0; }), Code::bad_argument, "options.cache");
    CHECK_STATUS(with([](Options& o) { o.cache = static_cast<DType>(77); }), Code::bad_argument, "options.cache");
    CHECK_STATUS(with([](Options& o) { o.isa = static_cast<Isa>(77); }), Code::not_supported, "options.isa");
    CHECK(with([](Options& o) { o.slices = 0; }).code == Code::ok);
    CHECK(with([](Options& o) { o.batch = 10000; }).code == Code::ok);
}

// ---- Calls ----------------------------------------------------------------------------------------------------------

TEST_CASE("what forward() refuses leaves the session as it was")
{
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(16, 64);
    const std::vector<float> want = last_logits(opened.model, plain_options(16), ids);
    Started run(opened.model, plain_options(16));
    Session& s = run.session;
    REQUIRE_OK(forward(s, tokens_of(ids, 0, 10), nullptr));
    for (const int32_t id : {-1, 64, 1000, INT32_MAX, INT32_MIN}) {
        const int32_t wrong[3] = {1, 2, id};
        Input in;
        in.tokens = wrong;
        in.count = 3;
        const Status status = forward(s, in, nullptr);
        CHECK_STATUS(status, Code::bad_token, "tokens");
        CHECK(status.where == 2);
        CHECK(s.position == 10);
    }
    const int32_t types[2] = {0, 1};
    Input in = tokens_of(ids, 0, 2);
    in.types = types;
    CHECK_STATUS(forward(s, in, nullptr), Code::bad_token, "types");
    CHECK_STATUS(forward(s, Input{}, nullptr), Code::bad_argument, "count");
    in = Input{};
    in.count = 3;
    CHECK_STATUS(forward(s, in, nullptr), Code::bad_argument, "count");
    for (const uint32_t count : {7u, 16u}) {                   // six are left
        const Status status = forward(s, tokens_of(ids, 0, count), nullptr);
        CHECK_STATUS(status, Code::session_full, "count");
        CHECK(s.position == 10);
    }
    in = tokens_of(ids);
    in.count = 0xffffffffu;
    CHECK_STATUS(forward(s, in, nullptr), Code::session_full, "count");
    CHECK(encode(s, tokens_of(ids), nullptr).code == Code::bad_argument);
    CHECK(set_memory(s, want.data(), 1, nullptr).code == Code::bad_argument);
    REQUIRE_OK(forward(s, tokens_of(ids, 10), nullptr));
    CHECK(same_bits(last_row(s), want));
    CHECK_STATUS(forward(s, tokens_of(ids, 0, 1), nullptr), Code::session_full, "count");
}

TEST_CASE("an observer that stops a forward leaves the session usable")
{
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(30, 64);
    struct Stop {
        int after;
    } stop = {0};
    Options o = plain_options(40);
    o.batch = 8;
    o.observer_user = &stop;
    o.observer = [](void* user, const Event&) { return static_cast<Stop*>(user)->after-- > 0; };
    o.observe_attention = true;
    Options plain = o;
    plain.observer = nullptr;
    const std::vector<float> want = last_logits(opened.model, plain, ids);
    Started run(opened.model, o);
    stop.after = 1000000;
    REQUIRE_OK(forward(run.session, tokens_of(ids, 0, 5), nullptr));
    for (int after = 0; after < 172; after += 1 + after / 10) { // 3 batches of 4 events, 160 rows
        stop.after = after;
        CHECK(forward(run.session, tokens_of(ids, 5, 20), nullptr).code == Code::cancelled);
        CHECK(run.session.position == 5);
    }
    stop.after = 1000000;
    REQUIRE_OK(forward(run.session, tokens_of(ids, 5), nullptr));
    CHECK(same_bits(last_row(run.session), want));
}

TEST_CASE("after an encoder that was stopped the decoder does not go on with what is no longer there")
{
    Config decoder = tiny_config(), encoder = small_config(16, 30, 2, 2, 1, 8, 40);
    decoder.flags |= flag_cross;
    encoder.flags = encoder.n_outputs = 0;
    const Opened opened(make_model(decoder, Slots{}, 1, encoder));
    bool stop = false;
    Options o = plain_options(40);
    o.observer_user = &stop;
    o.observer = [](void* user, const Event& e) {
        return !(*static_cast<bool*>(user) && e.encoder && e.kind == Event::layer_output);
    };
    Started run(opened.model, o);
    const auto source = random_tokens(30, 40), ids = random_tokens(20, 64);
    REQUIRE_OK(encode(run.session, tokens_of(source), nullptr));
    REQUIRE_OK(forward(run.session, tokens_of(ids), nullptr));
    const std::vector<float> want = last_row(run.session);
    stop = true;
    CHECK(encode(run.session, tokens_of(source, 3), nullptr).code == Code::cancelled);
    stop = false;
    CHECK(forward(run.session, tokens_of(ids, 0, 1), nullptr).code == Code::no_memory_rows);
    REQUIRE_OK(encode(run.session, tokens_of(source), nullptr));
    REQUIRE_OK(forward(run.session, tokens_of(ids), nullptr));
    CHECK(same_bits(last_row(run.session), want));
}

TEST_CASE("with all logits a forward takes at most one batch")
{
    const Opened opened(tiny_llama());
    Options o = plain_options(40);
    o.batch = 8;
    o.all_logits = true;
    Started run(opened.model, o);
    const auto ids = random_tokens(9, 64);
    CHECK_STATUS(forward(run.session, tokens_of(ids), nullptr), Code::bad_argument, "count");
    REQUIRE_OK(forward(run.session, tokens_of(ids, 0, 8), nullptr));
    CHECK(run.session.logit_rows == 8);
}

TEST_CASE("masks that hide every key, and padding that is no number, leave the real rows finite")
{
    Config c = tiny_config();
    c.flags = 0;
    const Opened opened(make_model(c, Slots{}, 1));
    const auto ids = random_tokens(10, 64);
    const std::vector<uint8_t> none(10, 0);
    Input in = tokens_of(ids);
    in.mask = none.data();
    Started run(opened.model, plain_options(10));
    float* logits = nullptr;
    REQUIRE_OK(forward(run.session, in, &logits));
    for (uint32_t i = 0; i < 10 * 64; i++) REQUIRE(std::isfinite(logits[i]));
}

TEST_CASE("a model says which features of the family it needs, and no more")
{
    const auto needed = [](const Config& c, const Slots& s, DType type) { return Opened(make_model(c, s, 1), type).model.features; };
    const Config plain = tiny_config();
    const uint32_t llama = mask_of(Feature::dense_weights, Feature::frequencies);
    CHECK(needed(plain, Slots{}, DType::f16) == llama);
    CHECK(needed(plain, Slots{}, DType::q8_0) == mask_of(Feature::quantised_weights, Feature::frequencies));
    CHECK(needed(plain, Slots{}, DType::q4_0)                  // the embedding stays finer
        == mask_of(Feature::nibble_weights, Feature::quantised_weights, Feature::frequencies));
    const auto more = [&](Feature f, void (*change)(Config&, Slots&)) {
        Config c = plain;
        Slots s;
        change(c, s);
        CHECK(needed(c, s, DType::f32) == (llama | mask_of(f)));
    };
    more(Feature::layer_norm, [](Config& c, Slots&) { c.norm = NormKind::layer; });
    more(Feature::layer_norm, [](Config&, Slots& s) { s.norm_shift = true; });
    more(Feature::biases, [](Config&, Slots& s) { s.attention_bias = true; });
    more(Feature::experts, [](Config& c, Slots&) { c.n_experts = 4, c.n_experts_active = 2; });
    more(Feature::qk_norm, [](Config&, Slots& s) { s.qk = QkNorm::one_head; });
    more(Feature::softcap, [](Config& c, Slots&) { c.logit_softcap = 30; });
    more(Feature::encoder, [](Config& c, Slots&) { c.flags &= ~flag_causal; });
    more(Feature::relative, [](Config&, Slots& s) { s.sinks = true; });
    more(Feature::activations, [](Config&, Slots& s) { s.gate = false; });
    more(Feature::activations, [](Config& c, Slots&) { c.activation = Activation::gelu; });
    more(Feature::embeddings, [](Config&, Slots& s) { s.positions = 64; });
    more(Feature::embeddings, [](Config& c, Slots&) { c.embedding_scale = 8; });
    more(Feature::windows, [](Config& c, Slots&) { c.window = 4; });
    more(Feature::windows, [](Config& c, Slots& s) { s.layer_flags.assign(c.n_layers, layer_no_rope); });
}

// ---- Files ----------------------------------------------------------------------------------------------------------

TEST_CASE("files that are missing, empty or no files are a Status")
{
    File file;
    CHECK_STATUS(map_file("/nowhere/at all", &file), Code::file_error, "path");
    CHECK(file.data == nullptr);
    CHECK_STATUS(map_file(std::filesystem::temp_directory_path().string().c_str(), &file), Code::file_error, "path");
    const Temporary empty("empty", "", 0);
    CHECK_STATUS(map_file(empty.path.c_str(), &file), Code::truncated, "size");
#if defined(__unix__)                                          // nobody writes to this pipe, and nobody waits for it
    REQUIRE(std::remove(empty.path.c_str()) == 0);
    REQUIRE(mkfifo(empty.path.c_str(), 0600) == 0);
    CHECK_STATUS(map_file(empty.path.c_str(), &file), Code::file_error, "path");
#endif
    const AlignedBytes bytes = tiny_llama().checkpoint();
    const Temporary good("good", bytes.data, static_cast<size_t>(bytes.size));
    REQUIRE_OK(map_file(good.path.c_str(), &file));
    CHECK(file.size == bytes.size);
    Model model;
    CHECK(open(file.data, file.size, &model).code == Code::ok);
    unmap_file(&file);
    CHECK(file.data == nullptr);
    unmap_file(&file);
}

TEST_CASE("a file of 5 GiB with weights beyond the fourth is read where they are")
{
    if (sizeof(void*) < 8) return;
    const TestModel m = tiny_llama();
    const AlignedBytes bytes = m.checkpoint();
    const uint64_t size = uint64_t{5} << 30, far = (uint64_t{9} << 29) + 64;           // 4.5 GiB
    const Temporary sparse("sparse", bytes.data, static_cast<size_t>(bytes.size));
    std::error_code error;
    std::filesystem::resize_file(sparse.path, size, error);
    if (error) {
        MESSAGE("this file system holds no sparse file of 5 GiB: not tested");
        return;
    }
    File file;
    REQUIRE_OK(map_file(sparse.path.c_str(), &file));
    CHECK(file.size == size);
    Model model;
    const Status status = open(file.data, file.size, &model);
    CHECK_STATUS(status, Code::truncated, "size");
    CHECK(status.where == bytes.size);
    unmap_file(&file);

    // now the header says 5 GiB, and the head's weights lie behind 4.5 of them
    std::fstream stream(sparse.path, std::ios::binary | std::ios::in | std::ios::out);
    const auto put = [&](uint64_t at, const void* data, size_t n) {
        stream.seekp(static_cast<std::streamoff>(at));
        stream.write(static_cast<const char*>(data), static_cast<std::streamsize>(n));
    };
    unsigned char word[8];
    weights::store_u64(word, size);
    put(16, word, 8);
    bool found = false;
    for (uint32_t i = 0; i < entries_of(bytes); i++) {
        unsigned char* const e = entry(bytes, i);
        if (e[0] != static_cast<unsigned char>(Role::lm_head)) continue;
        put(far, bytes.data + weights::load_u64(e + 24), 64 * 16 * 4);
        weights::store_u64(word, far);
        put(table_at + uint64_t{i} * 32 + 24, word, 8);
        const std::vector<char> zeros(64 * 16 * 4, 0);
        put(weights::load_u64(e + 24), zeros.data(), zeros.size());
        found = true;
    }
    stream.close();
    REQUIRE(found);
    REQUIRE_OK(map_file(sparse.path.c_str(), &file));
    REQUIRE_OK(open(file.data, file.size, &model));
    const auto ids = random_tokens(8, 64);
    const Opened near_by(m);
    CHECK(same_bits(last_logits(model, plain_options(8), ids), last_logits(near_by.model, plain_options(8), ids)));
    unmap_file(&file);
}
