// What the readers make of other people's files, and what the writer makes of that: llama2.c models and tokenizers of
// all versions, good and bad, against the reference and against llama2.c itself; files that are something else; the
// checkpoint.
#include "reference.hpp"
#include "weights/json.hpp"

#include <algorithm>
#include <chrono>
#include <tuple>

using namespace test;
using namespace transformer;
using weights::Llama2cHeader;
using weights::Llama2cTensor;

namespace {

void put_word(std::string& to, int64_t value)
{
    unsigned char b[4];
    weights::store_u32(b, static_cast<uint32_t>(value));
    to.append(reinterpret_cast<const char*>(b), 4);
}
void put_floats(std::string& to, const std::vector<float>& values)
{
    for (const float v : values) put_word(to, bits_of(v));
}
void set_word(std::string& in, size_t at, int64_t value)
{
    std::string word;
    put_word(word, value);
    in.replace(at, 4, word);
}

const std::vector<float>& values_of(const TestModel& m, uint32_t layer, Role role)
{
    return m.get(0, layer, role)->values;
}

// The tensors of a model, its rows taken to be in the file's order, as llama2.c writes them.
std::string llama2c_v0(const TestModel& m, bool tied, int32_t seq = 16)
{
    const Config& c = m.main;
    std::string out;
    const uint32_t words[] = {c.dim, c.hidden_dim, c.n_layers, c.n_heads, c.n_kv_heads};
    for (const uint32_t w : words) put_word(out, w);
    put_word(out, tied ? int64_t{c.vocab_size} : -int64_t{c.vocab_size});
    put_word(out, seq);
    put_floats(out, values_of(m, 0, Role::token_embedding));
    for (const Role role : {Role::attn_norm_pre, Role::wq, Role::wk, Role::wv, Role::wo, Role::ffn_norm_pre, Role::gate,
                            Role::down, Role::up})
        for (uint32_t l = 1; l <= c.n_layers; l++) put_floats(out, values_of(m, l, role));
    put_floats(out, values_of(m, 0, Role::final_norm));
    put_floats(out, std::vector<float>(static_cast<size_t>(seq) * c.head_dim, 1e30f)); // the tables that nobody reads
    if (!tied) put_floats(out, values_of(m, 0, Role::lm_head));
    return out;
}

// Versions 1 and 2. Version 2 rounds to 8 bits in groups that run over the flat tensor; `rounded` gets the numbers it
// means.
std::string llama2c_later(const TestModel& m, bool tied, int32_t version, int32_t group, TestModel* rounded = nullptr)
{
    const Config& c = m.main;
    std::string out;
    put_word(out, 0x616b3432);
    put_word(out, version);
    const uint32_t words[] = {c.dim, c.hidden_dim, c.n_layers, c.n_heads, c.n_kv_heads, c.vocab_size, 16};
    for (const uint32_t w : words) put_word(out, w);
    out += tied ? '\1' : '\0';
    if (version == 2) put_word(out, group);
    out.resize(256, '\0');
    const auto put = [&](uint32_t layer, Role role) {
        const std::vector<float>& values = values_of(m, layer, role);
        if (version == 1) return put_floats(out, values);
        const size_t n = values.size(), g = group > 0 ? static_cast<size_t>(group) : n;
        std::vector<float> scales;
        for (size_t at = 0; at < n; at += g) {
            const size_t end = std::min(n, at + g);
            float top = 0;
            for (size_t i = at; i < end; i++) top = std::max(top, std::fabs(values[i]));
            const float scale = top / 127.0f;
            scales.push_back(scale);
            for (size_t i = at; i < end; i++) {
                const long q = scale > 0 ? std::lrint(static_cast<double>(values[i]) / static_cast<double>(scale)) : 0;
                out += static_cast<char>(q);
                if (rounded) rounded->at(0, layer, role).values[i] = scale * static_cast<float>(q);
            }
        }
        put_floats(out, scales);
    };
    for (const Role role : {Role::attn_norm_pre, Role::ffn_norm_pre})
        for (uint32_t l = 1; l <= c.n_layers; l++) put_floats(out, values_of(m, l, role));
    put_floats(out, values_of(m, 0, Role::final_norm));
    put(0, Role::token_embedding);
    for (const Role role : {Role::wq, Role::wk, Role::wv, Role::wo, Role::gate, Role::down, Role::up})
        for (uint32_t l = 1; l <= c.n_layers; l++) put(l, role);
    if (!tied) put(0, Role::lm_head);
    if (tied && rounded) rounded->at(0, 0, Role::lm_head).values = values_of(*rounded, 0, Role::token_embedding);
    return out;
}

TestModel tied_model(TestModel m)
{
    m.at(0, 0, Role::lm_head).values = values_of(m, 0, Role::token_embedding);
    return m;
}

weights::Source read(const std::string& bytes)
{
    const Temporary file("model.bin", bytes);
    return weights::read_source(file.path, "");
}
std::string read_error(const std::string& bytes)
{
    return error_of([&] { (void)read(bytes); });
}
AlignedBytes imported(const std::string& bytes, bool as_f32 = true)
{
    const Temporary file("model.bin", bytes);
    weights::WriteOptions options;
    options.convert = as_f32;
    return weights::write_to_memory(weights::read_source(file.path, ""), options);
}
std::vector<float> run(const std::string& bytes, const std::vector<int32_t>& ids)
{
    const Opened opened(imported(bytes));
    return all_logits(opened.model, plain_options(static_cast<uint32_t>(ids.size())), ids,
                      static_cast<uint32_t>(ids.size()));
}
std::vector<double> interleaved(const TestModel& m, const std::vector<int32_t>& ids)
{
    Reference reference(m);
    reference.interleaved = true;
    return reference.logits(ids);
}

}  // namespace

// ---- llama2.c models ------------------------------------------------------------------------------------------------

TEST_CASE("the sign of llama2.c's vocabulary size says whether the classifier is its own")
{
    const TestModel m = tiny_llama();
    const std::string tied = llama2c_v0(m, true), own = llama2c_v0(m, false);
    REQUIRE(tied.size() == 26204);
    REQUIRE(own.size() == 30300);
    const auto ids = random_tokens(12, 64);
    const std::vector<float> a = run(tied, ids), b = run(own, ids);
    CHECK(distance(a, interleaved(tied_model(m), ids)) < 1e-5);
    CHECK(distance(b, interleaved(m, ids)) < 1e-5);
    CHECK_FALSE(same_bits(a, b));
    CHECK(imported(tied).size < imported(own).size);           // one copy of what is shared

    std::string swapped = tied;                                // each with the other's header
    swapped.replace(0, 28, own, 0, 28);
    CHECK(contains(read_error(swapped), "30300"));
    CHECK(contains(read_error(swapped), "26204"));
    CHECK(contains(read_error(swapped), "classifier"));
    swapped = own;
    swapped.replace(0, 28, tied, 0, 28);
    CHECK(contains(read_error(swapped), "30300"));
    CHECK(contains(read_error(swapped), "classifier"));
}

TEST_CASE("llama2.c's neighbouring pairs of q and k are rotated as neighbours")
{
    const TestModel m = tiny_llama(5);
    const auto ids = random_tokens(12, 64);
    const std::vector<float> got = run(llama2c_v0(m, false), ids);
    const std::vector<double> right = interleaved(m, ids), other = Reference(m).logits(ids);
    CHECK(distance(got, right) < 1e-5);
    const auto at = [&](const std::vector<double>& v, int position) {
        return std::vector<double>(v.begin() + position * 64, v.begin() + position * 64 + 64);
    };
    const auto got_at = [&](int position) {
        return std::vector<float>(got.begin() + position * 64, got.begin() + position * 64 + 64);
    };
    CHECK(distance(got_at(0), at(other, 0)) < 1e-5);           // nothing is turned at position 0
    for (int position = 1; position < 12; position++) CHECK(distance(got_at(position), at(other, position)) > 1e-3);
}

TEST_CASE("all three versions of llama2.c's files give the reference's logits")
{
    const TestModel m = make_model(small_config(24, 43, 3, 6, 2, 4, 50), Slots{}, 6);
    const auto ids = random_tokens(14, 50);
    for (const bool tied : {false, true}) {
        const TestModel model = tied ? tied_model(m) : m;
        CHECK(distance(run(llama2c_v0(m, tied), ids), interleaved(model, ids)) < 1e-5);
        CHECK(distance(run(llama2c_later(m, tied, 1, 0), ids), interleaved(model, ids)) < 1e-5);
        TestModel rounded = model;
        const std::string in_8_bits = llama2c_later(model, tied, 2, 8, &rounded);
        CHECK(distance(run(in_8_bits, ids), interleaved(rounded, ids)) < 1e-5);
    }
}

TEST_CASE("8-bit groups that do not divide the rows are read right, and the group size is checked")
{
    struct Sizes { uint32_t dim, hidden; int32_t group; };
    for (const Sizes& sizes :
         {Sizes{16, 40, 16}, {32, 40, 32}, {64, 1376, 64}, {32, 44, 24}, {16, 40, 7}, {16, 40, 1}}) {
        const uint32_t dim = sizes.dim, hidden = sizes.hidden;
        const int32_t group = sizes.group;
        const TestModel m = make_model(small_config(dim, hidden, 1, 4, 2, dim / 4, 30), Slots{}, 7);
        TestModel rounded = m;
        const std::string bytes = llama2c_later(m, false, 2, group, &rounded);
        const auto ids = random_tokens(10, 30);
        INFO(dim << ", " << hidden << ", groups of " << group);
        CHECK(distance(run(bytes, ids), interleaved(rounded, ids)) < 2e-5);
        CHECK(distance(run(bytes, ids), interleaved(m, ids)) < 0.1);
        const Opened kept(imported(bytes, false));             // 8 bits stay 8 bits
        CHECK(kept.model.main.token_embedding.dtype == DType::q8_0);
        CHECK(distance(all_logits(kept.model, plain_options(10), ids, 10), interleaved(m, ids)) < 0.2);
    }
    const TestModel m = tiny_llama();
    for (const int32_t group : {0, -1, 17, 64, INT32_MAX, INT32_MIN})
        CHECK(contains(read_error(llama2c_later(m, false, 2, group)), "group_size"));
    std::string wrong = llama2c_later(m, false, 1, 0);
    set_word(wrong, 4, 3);
    CHECK(contains(read_error(wrong), "version 3"));
    wrong = llama2c_later(m, false, 1, 0);
    wrong[36] = 2;
    CHECK(contains(read_error(wrong), "shared_classifier"));
}

TEST_CASE("the length that llama2.c's model was trained for moves nothing but the classifier")
{
    const TestModel m = tiny_llama();
    const auto ids = random_tokens(4, 64);
    const std::vector<float> want = run(llama2c_v0(m, false, 16), ids);
    for (const int32_t seq : {1, 4, 48, 4096}) CHECK(same_bits(run(llama2c_v0(m, false, seq), ids), want));
    const Opened longer(imported(llama2c_v0(m, false, 4096)));
    CHECK(longer.model.main.config.max_seq_len == 4096);
    CHECK(same_bits(all_logits(longer.model, plain_options(4), ids, 4), want));
}

TEST_CASE("a file whose floats begin 28 bytes in, read or mapped, gives the same bits in every room")
{
    const std::string bytes = llama2c_v0(tiny_llama(), false);
    const Temporary file("model.bin", bytes);
    const weights::File mapped = weights::map_file(file.path), copied = weights::read_file(file.path);
    for (const weights::File& f : {mapped, copied}) {
        REQUIRE(f->size == bytes.size());
        CHECK(std::memcmp(f->data, bytes.data(), bytes.size()) == 0);
    }
    const Opened opened(imported(bytes));
    const auto ids = random_tokens(12, 64);
    Options o = plain_options(12);
    o.isa = Isa::scalar;
    const std::vector<float> want = all_logits(opened.model, o, ids, 12);
    for (const Isa isa : rooms()) {
        o.isa = isa;
        CHECK(same_bits(all_logits(opened.model, o, ids, 12), want));
    }
}

TEST_CASE("every prefix of a llama2.c file is refused in one sentence that gives both lengths")
{
    const std::string whole = llama2c_v0(tiny_llama(), true), later = llama2c_later(tiny_llama(), true, 2, 16);
    for (const std::string* bytes : {&whole, &later})
        for (size_t n = 0; n < bytes->size(); n += n < 300 ? 1 : 97) {
            const std::string error = read_error(bytes->substr(0, n));
            CHECK(error != "");
            if (n >= 28 && bytes == &whole) CHECK((contains(error, std::to_string(n)) && contains(error, "26204")));
        }
    CHECK(contains(read_error(whole + '\0'), "26205"));
}

TEST_CASE("every field of llama2.c's header that makes no sense is refused")
{
    const std::string good = llama2c_v0(tiny_llama(), true);
    const char* const names[] = {"dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len"};
    for (size_t field = 0; field < 7; field++)
        for (const int64_t value :
             {int64_t{0}, int64_t{-1}, int64_t{INT32_MIN}, int64_t{INT32_MAX}, int64_t{1} << 30}) {
            std::string bytes = good;
            set_word(bytes, field * 4, value);
            const std::string error = read_error(bytes);
            INFO(std::string(names[field]) << " = " << value << ": " << error);
            CHECK((contains(error, names[field]) || (field == 5 && value == -1 && contains(error, "bytes"))));
        }
}

TEST_CASE("head counts that do not divide, and heads that cannot be rotated, are refused")
{
    const auto with = [](int64_t dim, int64_t heads, int64_t kv) {
        std::string bytes = llama2c_v0(tiny_llama(), true);
        set_word(bytes, 0, dim);
        set_word(bytes, 12, heads);
        set_word(bytes, 16, kv);
        return read_error(bytes);
    };
    CHECK(contains(with(16, 3, 3), "n_heads is 3"));
    CHECK(contains(with(16, 4, 3), "n_kv_heads is 3"));
    CHECK(contains(with(16, 4, 8), "n_kv_heads is 8"));
    CHECK(contains(with(12, 4, 4), "head_dim"));
    CHECK(contains(with(4096, 7, 7), "n_heads is 7"));
}

TEST_CASE("offsets into the largest models are exact in 64 bits, and sizes that wrap stay large")
{
    Llama2cHeader h;
    h.dim = 5120;
    h.hidden_dim = 13824;
    h.n_layers = 40;
    h.n_heads = h.n_kv_heads = 40;
    h.vocab_size = 32000;
    h.max_seq_len = 2048;
    CHECK(weights::llama2c_elements(h, Llama2cTensor::w1, 39) == 2760376320u);
    const uint64_t before = 28 + 4 * (uint64_t{32000} * 5120 + 40 * (2 * 5120 + uint64_t{4} * 5120 * 5120));
    CHECK(weights::llama2c_offset(h, Llama2cTensor::w1, 39) == before + 4 * uint64_t{2760376320u});

    h = Llama2cHeader{};
    h.dim = 8192;
    h.hidden_dim = 28672;
    h.n_layers = 80;
    h.n_heads = 64;
    h.n_kv_heads = 8;
    h.vocab_size = 32000;
    h.max_seq_len = 4096;
    h.tied = false;
    const uint64_t block =
        2 * 8192 + uint64_t{2} * 8192 * 8192 + uint64_t{2} * 1024 * 8192 + uint64_t{3} * 8192 * 28672;
    CHECK(weights::llama2c_size(h) == 28 + 4 * (80 * block + uint64_t{2} * 32000 * 8192 + 8192 + 4096 * 128));
    h.version = 2;
    h.group_size = 64;
    const uint64_t quantised = 80 * (block - 2 * 8192) + uint64_t{2} * 32000 * 8192;
    CHECK(weights::llama2c_size(h) == 256 + 4 * (80 * uint64_t{2} * 8192 + 8192) + quantised + quantised / 64 * 4);

    for (const auto& [dim, hidden, layers, vocab] :
         {std::make_tuple(65536u, 65536u, 4u, 64u), std::make_tuple(0x7fffffffu, 0x7fffffffu, 4u, 64u),
          std::make_tuple(0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu)}) {
        Llama2cHeader large;
        large.dim = dim;
        large.hidden_dim = hidden;
        large.n_layers = layers;
        large.n_heads = large.n_kv_heads = 1;
        large.vocab_size = vocab;
        large.max_seq_len = 16;
        CHECK(weights::llama2c_size(large) > uint64_t{1} << 34);
        CHECK(weights::llama2c_offset(large, Llama2cTensor::final_norm) >=
              weights::llama2c_offset(large, Llama2cTensor::w1, layers - 1));
    }
    CHECK(weights::mul_sat(uint64_t{1} << 32, uint64_t{1} << 32) == UINT64_MAX);
    CHECK(weights::add_sat(UINT64_MAX, 1) == UINT64_MAX);
    for (const auto& [dim, hidden, layers] :
         {std::make_tuple(65536, 65536, 4), std::make_tuple(INT32_MAX, INT32_MAX, 4),
          std::make_tuple(1 << 20, 1 << 24, 65534)}) {
        std::string bytes = llama2c_v0(tiny_llama(), true);
        set_word(bytes, 0, dim);
        set_word(bytes, 4, hidden);
        set_word(bytes, 8, layers);
        CHECK(read_error(bytes) != "");
    }
}

TEST_CASE("a file that is something else is named as what it is, at once")
{
    const std::pair<const char*, std::string> files[] = {
        {"GGUF", "GGUF"},
        {"ggml", "tjgg"},
        {"ggml", "ggjt"},
        {"ELF", "\x7f"
                "ELF"},
        {"zip", "PK\x03\x04"},
        {"PNG", "\x89PNG"},
        {"gzip", "\x1f\x8b"},
        {"zeros", std::string(4096, '\0')},
        {"0xff", std::string(4096, '\xff')},
        {"text", std::string(4096, 'a')},
        {"JSON", "{\"dim\": 16}"},
        {"HTML", "<!DOCTYPE html>"},
        {"flat checkpoint", "TRNSFRMR"},
        {"Git LFS", "version https://git-lfs.github.com/spec/v1"},
        {"CTranslate2", std::string("\6\0\0\0\14\0WhisperSpec\0\3", 19)},
        {"empty", ""},
        {"text", "Once upon a time there was a file that was no model."}};
    const auto begin = std::chrono::steady_clock::now();
    for (const auto& f : files) {
        std::string bytes = f.second;
        if (bytes.size() < 4096 && bytes.size() < 20 && bytes.size() && bytes[0] != '{' && bytes[0] != '<')
            bytes.resize(4096, '\3');
        const std::string error = read_error(bytes);
        INFO(error);
        CHECK(contains(error, f.first));
        CHECK_FALSE(contains(error, "\n"));
    }
    const bool at_once = std::chrono::steady_clock::now() - begin < std::chrono::seconds(2);
    CHECK(at_once);
    CHECK(contains(error_of([] { (void)weights::read_source("/nowhere/at all.bin", ""); }), "/nowhere/at all.bin"));
}

TEST_CASE("random changes of a llama2.c file are read or refused")
{
    Random r{12};
    const std::string good[] = {llama2c_v0(tiny_llama(), true), llama2c_later(tiny_llama(), false, 2, 16)};
    const Temporary file("changed.bin", good[0]);
    uint32_t read_well = 0;
    for (uint32_t i = 0; i < 400; i++) {
        std::string bytes = good[i % 2];
        for (uint32_t n = r.between(1, 3); n; n--)
            bytes[r.chance(2) ? r.below(64) : r.below(static_cast<uint32_t>(bytes.size()))] =
                static_cast<char>(r.below(256));
        file.write(bytes.data(), bytes.size());
        try {
            const AlignedBytes written = weights::write_to_memory(weights::read_source(file.path, ""), {});
            Model model;
            CHECK(transformer::open(written.data, written.size, &model).code == Code::ok);
            read_well++;
        } catch (const weights::Error&) {
        }
    }
    CHECK(read_well > 50);
}

TEST_CASE("a sparse file of 5 GiB is measured in 64 bits")
{
    const std::string bytes = llama2c_v0(tiny_llama(), true);
    const Temporary sparse("sparse.bin", bytes);
    std::error_code error;
    std::filesystem::resize_file(sparse.path, uint64_t{5} << 30, error);
    if (error) {
        MESSAGE("this file system holds no sparse file of 5 GiB: not tested");
        return;
    }
    const std::string said = error_of([&] { (void)weights::read_source(sparse.path, ""); });
    if (sizeof(void*) < 8) CHECK(contains(said, "too large for this platform"));
    else CHECK((contains(said, "5368709120") && contains(said, "26204")));
}

// ---- llama2.c tokenizers --------------------------------------------------------------------------------------------

namespace {

std::string tokenizer_file(const std::vector<std::pair<std::string, float>>& tokens, int32_t longest = 40)
{
    std::string out;
    put_word(out, longest);
    for (const auto& t : tokens) {
        put_word(out, bits_of(t.second));
        put_word(out, static_cast<int64_t>(t.first.size()));
        out += t.first;
    }
    return out;
}
std::vector<std::pair<std::string, float>> sixty_four_tokens()
{
    std::vector<std::pair<std::string, float>> list = {{"<unk>", 0.0f}, {"\n<s>\n", 0.0f}, {"\n</s>\n", 0.0f}};
    for (int i = 0; list.size() < 64; i++)
        list.emplace_back(std::string(1, static_cast<char>('A' + i % 58)) + (i % 2 ? "bc" : ""),
                          -static_cast<float>(i));
    return list;
}
std::string tokenizer_error(const std::string& bytes)
{
    const Temporary model("model.bin", llama2c_v0(tiny_llama(), true)), tokenizer("tokenizer.bin", bytes);
    return error_of([&] { (void)weights::read_source(model.path, tokenizer.path); });
}

}  // namespace

TEST_CASE("a llama2.c tokenizer becomes the vocabulary, wherever it is found")
{
    const Temporary folder("folder");
    std::filesystem::create_directory(folder.path);
    const std::string model = weights::join(folder.path, "model.bin"), beside = weights::join(folder.path, "tok64.bin");
    const auto write = [](const std::string& path, const std::string& bytes) {
        std::ofstream(path, std::ios::binary) << bytes;
    };
    write(model, llama2c_v0(tiny_llama(), true));
    CHECK(weights::read_source(model, "").vocabulary.tokens.empty());
    write(weights::join(folder.path, "tokenizer.bin"), tokenizer_file({{"another", 0.0f}, {"model's", 1.0f}}));
    CHECK(weights::read_source(model, "").vocabulary.tokens.empty());
    write(beside, tokenizer_file(sixty_four_tokens()));
    const weights::VocabularySource v = weights::read_source(model, "").vocabulary;
    REQUIRE(v.tokens.size() == 64);
    CHECK(v.tokens[1] == "<s>");
    CHECK(v.tokens[2] == "</s>");
    CHECK(v.types[0] == TokenType::unknown);
    CHECK(v.types[1] == TokenType::control);
    CHECK(v.types[3] == TokenType::normal);
    CHECK(v.bos == 1);
    CHECK(v.eos == 2);
    CHECK(v.stop == std::vector<int32_t>{1, 2});
    CHECK((v.flags & vocabulary_byte_fallback) == 0);
    const Opened opened(weights::write_to_memory(weights::read_source(model, ""), {}));
    CHECK(opened.model.vocabulary.n_tokens == 64);
    CHECK(token_id(opened.model.vocabulary, "Bbc", 3) == 4);
}

TEST_CASE("damaged tokenizers are refused in one sentence")
{
    const std::string good = tokenizer_file(sixty_four_tokens());
    CHECK(tokenizer_error(good) == "");
    size_t last = 4;                                           // where token 5 begins
    for (int i = 0; i < 5; i++) last += 8 + sixty_four_tokens()[static_cast<size_t>(i)].first.size();
    for (const int64_t length : {int64_t{-1}, int64_t{INT32_MAX}, int64_t{INT32_MIN}, int64_t{1000000},
                                 static_cast<int64_t>(good.size() - last - 7)}) {
        std::string bytes = good;
        set_word(bytes, last + 4, length);
        CHECK(contains(tokenizer_error(bytes), "token"));
    }
    for (size_t n = 0; n < good.size(); n++) CHECK(tokenizer_error(good.substr(0, n)) != "");
    CHECK(contains(tokenizer_error(good + std::string(9, '\0')), "another model"));
    std::string bytes = good;
    set_word(bytes, last, 0x7fc00000);
    CHECK(contains(tokenizer_error(bytes), "score"));
    set_word(bytes, 0, -1);
    CHECK(contains(tokenizer_error(bytes), "max_token_length"));
    CHECK(contains(tokenizer_error(std::string("GGUF") + std::string(100, '\3')), "GGUF"));
    CHECK(contains(read_error(good), "tokenizer"));            // given as the model

    auto wide = sixty_four_tokens();                           // pieces longer than the file says do no harm
    wide[10].first = std::string(40, 'x');
    wide[11].first = std::string(39, 'x');
    CHECK(tokenizer_error(tokenizer_file(wide, 1)) == "");
}

// ---- The writer -----------------------------------------------------------------------------------------------------

TEST_CASE("the file that is written is the checkpoint in memory, and is there only when it is complete")
{
    const TestModel m = make_model(small_config(20, 43, 2, 4, 2, 8, 37), Slots{}, 3);
    const weights::Source source = m.source();
    const Temporary folder("folder");
    std::filesystem::create_directory(folder.path);
    const std::string path = weights::join(folder.path, "model.bin");
    const auto files = [&] {
        return std::distance(std::filesystem::directory_iterator(folder.path), std::filesystem::directory_iterator());
    };
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1}) {
        weights::WriteOptions options;
        options.convert = true;
        options.type = type;
        uint64_t last = 0, total = 0;
        bool ascending = true;
        options.progress = [&](uint64_t done, uint64_t all) {
            ascending = ascending && done >= last && done <= all;
            last = done;
            total = all;
        };
        const AlignedBytes bytes = weights::write_to_memory(source, options);
        CHECK(bytes.size == weights::checkpoint_size(source, options));
        CHECK(bytes.size % 64 == 0);
        last = 0;
        weights::write_to_file(source, options, path);
        CHECK(ascending);
        CHECK(last == total);
        const weights::File file = weights::map_file(path);
        CHECK((file->size == bytes.size && std::memcmp(file->data, bytes.data, static_cast<size_t>(bytes.size)) == 0));
        CHECK(files() == 1);

        options.progress = [](uint64_t done, uint64_t all) {
            if (done > all / 2) throw weights::Error("stopped");
        };
        CHECK(error_of([&] { weights::write_to_file(source, options, path); }) == "stopped");
        CHECK(files() == 1);                                   // the old file is as it was
        CHECK(weights::map_file(path)->size == bytes.size);
    }
    CHECK(error_of([&] { weights::write_to_file(source, {}, folder.path); }) != "");
    CHECK(error_of([&] { weights::write_to_file(source, {}, weights::join(folder.path, "no/such/folder")); }) != "");
    CHECK(files() == 1);
}

TEST_CASE("norms stay f32, routers stay plain, and with 4 bits the embedding and the head have 8")
{
    Config c = tiny_config();
    c.n_experts = 3;
    c.n_experts_active = 1;
    Slots s;
    s.positions = 20;
    s.attention_bias = true;
    const TestModel m = make_model(c, s, 1);
    const auto types = [&](DType type) {
        const AlignedBytes bytes = m.checkpoint(type);
        std::map<std::string, DType> out;
        for (uint32_t i = 0; i < weights::load_u32(bytes.data + 12); i++) {
            const unsigned char* const e = bytes.data + 576 + 32 * i;
            out[std::string(role_name(e[0])) + (e[0] & 0x80 ? " bias" : "")] = static_cast<DType>(e[1]);
        }
        return out;
    };
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1}) {
        auto t = types(type);
        CHECK(t["attn_norm_pre"] == DType::f32);
        CHECK(t["final_norm"] == DType::f32);
        CHECK(t["wq bias"] == DType::f32);
        CHECK(t["wq"] == type);
        CHECK(t["down"] == type);
        const bool small = type == DType::q4_0 || type == DType::q4_1;
        CHECK(t["token_embedding"] == (small ? DType::q8_0 : type));
        CHECK(t["lm_head"] == (small ? DType::q8_0 : type));
        CHECK_FALSE(is_quantised(t["router"]));
        CHECK_FALSE(is_quantised(t["position_embedding"]));
    }
}

TEST_CASE("what is no checkpoint cannot be written")
{
    const auto refused = [](void (*change)(weights::Source&)) {
        const TestModel m = tiny_llama();
        weights::Source source = m.source();
        change(source);
        return error_of([&] { (void)weights::write_to_memory(source, {}); });
    };
    CHECK(refused([](weights::Source&) {}) == "");
    CHECK(contains(refused([](weights::Source& s) { s.tensors.push_back(s.tensors[2]); }), "two tensors"));
    CHECK(refused([](weights::Source& s) { s.tensors[0].rows = 0; }) != "");
    CHECK(refused([](weights::Source& s) { s.tensors[0].count = 0; }) != "");
    CHECK(refused([](weights::Source& s) { s.tensors[0].role = 0x7f; }) != "");
    CHECK(refused([](weights::Source& s) { s.tensors[0].stack = 2; }) != "");
    CHECK(refused([](weights::Source& s) { s.tensors[0].layer = 70000; }) != "");
    CHECK(refused([](weights::Source& s) { s.tensors[0].read = nullptr; }) != "");
    CHECK(refused([](weights::Source& s) {
              s.tensors[0].rows = s.tensors[0].cols = 0x7fffffff, s.tensors[0].count = 0xffffffff;
          }) != "");
    CHECK(refused([](weights::Source& s) { s.vocabulary.tokens = {"a"}; }) != "");
    CHECK(refused([](weights::Source& s) {
        s.vocabulary.kind = VocabularyKind::sentencepiece_bpe;
        s.vocabulary.tokens = {"a", "b"};
        s.vocabulary.scores = {1.0f};
    }) != "");
}

TEST_CASE("tiles that a source has already are taken as they are")
{
    const TestModel m = make_model(small_config(20, 43, 1, 4, 2, 8, 37), Slots{}, 3);
    weights::Source source = m.source();
    for (weights::TensorSource& t : source.tensors)
        if (t.role == static_cast<uint8_t>(Role::up)) {
            t.stored = DType::q4_0;
            t.read_tile = [](uint32_t, uint32_t tile, unsigned char* out) {
                std::memset(out, static_cast<int>(0x30 + tile), 288);
            };
        }
    const Opened opened(weights::write_to_memory(source, {}));
    for (uint32_t i = 0; i < opened.model.n_tensors; i++) {
        const unsigned char* const e = opened.bytes.data + 576 + 32 * i;
        if (e[0] != static_cast<unsigned char>(Role::up)) continue;
        CHECK(e[1] == static_cast<unsigned char>(DType::q4_0));
        const unsigned char* const data = opened.bytes.data + weights::load_u64(e + 24);
        CHECK(data[0] == 0x30);
        CHECK(data[287] == 0x30);
        CHECK(data[288] == 0x31);
        CHECK(data[3 * 288 - 1] == 0x32);
    }
}

TEST_CASE("any number of threads writes the same bytes, and an error in one of them ends all")
{
    weights::Source source; // experts and a matrix of several pieces each
    for (const Role role : {Role::wq, Role::down}) {
        weights::TensorSource t;
        t.layer = 1;
        t.role = static_cast<uint8_t>(role);
        t.rows = 9001, t.cols = 67, t.count = role == Role::down ? 3 : 1;
        t.read = [role](uint32_t matrix, uint32_t first, uint32_t n, float* out) {
            for (uint64_t i = 0; i < uint64_t{n} * 67; i++)
                out[i] = unit(matrix + static_cast<uint64_t>(role), uint64_t{first} * 67 + i);
        };
        source.tensors.push_back(t);
    }
    for (const DType type : {DType::f32, DType::f16, DType::q8_0, DType::q4_1}) {
        weights::WriteOptions o;
        o.convert = true, o.type = type, o.threads = 1;
        const weights::AlignedBytes want = weights::write_to_memory(source, o);
        for (const uint32_t threads : {2u, 3u, 8u, 100u}) {
            o.threads = threads;
            uint64_t last = 0;
            bool ordered = true;
            o.progress = [&](uint64_t done, uint64_t total) {
                ordered = ordered && done >= last && done <= total;
                last = done;
            };
            const weights::AlignedBytes got = weights::write_to_memory(source, o);
            REQUIRE(got.size == want.size);
            CHECK(std::memcmp(got.data, want.data, want.size) == 0);
            CHECK(ordered);
            CHECK(last == want.size);
            const Temporary file("threads.bin");
            weights::write_to_file(source, o, file.path);
            const weights::File written = weights::map_file(file.path);
            REQUIRE(written->size == want.size);
            CHECK(std::memcmp(written->data, want.data, want.size) == 0);
        }
    }
    const auto read = source.tensors[1].read;
    source.tensors[1].read = [read](uint32_t matrix, uint32_t first, uint32_t n, float* out) {
        if (matrix == 1 && first) throw weights::Error("a broken piece");
        read(matrix, first, n, out);
    };
    weights::WriteOptions o;
    for (const uint32_t threads : {1u, 2u, 8u}) {
        o.threads = threads;
        CHECK(error_of([&] { (void)weights::write_to_memory(source, o); }) == "a broken piece");
    }
}

TEST_CASE("what is written is read back to the bit, and types are what was asked for")
{
    const TestModel m = make_model(small_config(20, 43, 2, 4, 2, 8, 37), Slots{}, 3);
    const Opened opened(m);
    for (uint32_t i = 0; i < opened.model.n_tensors; i++) {
        const unsigned char* const e = opened.bytes.data + 576 + 32 * i;
        const Weights& w = m.tensors.at(TestModel::key(e[2], weights::load_u16(e + 4), e[0]));
        const unsigned char* const data = opened.bytes.data + weights::load_u64(e + 24);
        size_t wrong = 0;
        for (size_t k = 0; k < w.values.size(); k++)
            wrong += bits_of(weights::load_f32(data + 4 * k)) != bits_of(w.values[k]);
        CHECK(wrong == 0);
    }
}

// ---- A real model ---------------------------------------------------------------------------------------------------

TEST_CASE("random changes of a Hugging Face folder are read or refused in one sentence")
{
    const Temporary folder("changed");
    std::filesystem::copy("tests/golden/llama-gqa", folder.path);
    const std::string names[] = {weights::join(folder.path, "config.json"),
                                 weights::join(folder.path, "model.safetensors")};
    std::string good[2];
    for (size_t i = 0; i < 2; i++) {
        const weights::File file = weights::map_file(names[i]);
        good[i].assign(reinterpret_cast<const char*>(file->data), file->size);
    }
    const auto write = [&](size_t i, const std::string& bytes) {
        std::ofstream(names[i], std::ios::binary | std::ios::trunc) << bytes;
    };
    static const char* const numbers[] = {"0",          "-1",   "1e99", "null", "99999999999",
                                          "2147483648", "true", "[]",   "1.5",  "NaN"};
    Random r{5};
    size_t opened = 0, refused = 0;
    for (int n = 0; n < 1500; n++) {
        const size_t which = r.below(2);
        std::string bytes = good[which];
        const uint64_t head = which ? 8 + weights::load_u64(reinterpret_cast<const unsigned char*>(bytes.data()))
                                    : bytes.size();
        const size_t at = r.below(static_cast<uint32_t>(head)), begin = bytes.find_first_of("0123456789", at);
        if (r.below(2)) bytes[at] = static_cast<char>(r.below(256));
        else if (begin < head)
            bytes.replace(begin, bytes.find_first_not_of("0123456789.e-", begin) - begin, numbers[r.below(10)]);
        write(which, bytes);
        try {
            const weights::Source source = weights::read_source(folder.path, "");
            if (weights::checkpoint_size(source, {}) < 1 << 24) {
                const weights::AlignedBytes out = weights::write_to_memory(source, {});
                Model model;
                opened += transformer::open(out.data, out.size, &model).code == Code::ok;
            }
        } catch (const weights::Error& error) {
            refused++;
            CHECK(std::string(error.what()).find('\n') == std::string::npos);
        }
        write(which, good[which]);
    }
    CHECK(opened > 20);
    CHECK(refused > 500);
}

TEST_CASE("OLMoE clips queries and keys behind their norms, and values")
{
    const Temporary folder("olmoe");
    std::filesystem::copy("tests/golden/olmoe", folder.path);
    const std::string path = weights::join(folder.path, "config.json");
    std::string config;
    std::getline(std::ifstream(path), config, '\0');
    const size_t at = config.find("\"clip_qkv\": null");
    REQUIRE(at != std::string::npos);
    std::ofstream(path) << config.replace(at, 16, "\"clip_qkv\": 0.8");
    weights::WriteOptions to_f32;
    to_f32.convert = true;
    Opened o(weights::write_to_memory(weights::read_source(folder.path, ""), to_f32));
    const std::vector<float> got = last_logits(o.model, plain_options(16), {30, 55, 18, 52, 38, 61, 13});
    // What transformers 4.57.6 gives for this configuration.
    const float want[64] = {
        1.537838f, -1.267206f, 1.277159f, -0.156458f, 0.368562f, -1.563107f, 0.061276f, 0.502104f,
        -0.033083f, 0.496279f, 0.925511f, -0.656236f, -1.260907f, 3.131303f, -1.294544f, -3.222859f,
        -1.466348f, 0.581134f, -0.993642f, 0.523611f, 1.117447f, 1.522583f, -0.000649f, 0.138949f,
        -0.057348f, -2.214252f, 1.182044f, -2.452334f, -2.021332f, -0.705468f, 0.190196f, 1.024303f,
        2.661640f, -1.197497f, -1.919466f, -0.067011f, 2.618105f, -0.446021f, -1.562539f, -3.156064f,
        1.116400f, 2.511580f, -0.772344f, 3.035183f, 0.322910f, -0.553955f, -0.111719f, 0.300574f,
        -1.083120f, -0.932881f, -2.579845f, 0.307797f, 0.083692f, 1.752357f, -0.211714f, -0.981416f,
        1.081985f, -0.453073f, 1.208574f, 2.366601f, 0.173394f, 0.233229f, 0.152409f, -0.332466f};
    REQUIRE(got.size() == 64);
    for (size_t i = 0; i < 64; i++) CHECK(std::fabs(got[i] - want[i]) < 3e-5f);
}

TEST_CASE("a real llama2.c model in four formats gives llama2.c's tokens and logits")
{
    const std::string folder = shared_folder("llama2c");
    if (folder.empty()) {
        MESSAGE("the folder llama2c is not in TRANSFORMER_SHARED or ../shared: the real model is not tested");
        return;
    }
    const weights::Json cases = weights::read_json(weights::join(folder, "expected/expected.json"));
    REQUIRE(!cases.items.empty());
    for (const weights::Json& c : cases.items) {
        const std::string name = c.find("model")->string, prompt = c.find("prompt")->string;
        INFO(name << ", prompt \"" << prompt << "\"");
        weights::WriteOptions options;
        options.convert = true;
        const Opened opened(weights::write_to_memory(
            weights::read_source(weights::join(folder, name), weights::join(folder, "tok512.bin")), options));
        std::vector<int32_t> want;
        for (const weights::Json& id : c.find("tokens")->items) want.push_back(static_cast<int32_t>(id.integer));
        std::vector<uint32_t> work(static_cast<size_t>(tokenize_size(opened.model.vocabulary, prompt.size())) / 4 + 1);
        std::vector<int32_t> ids(prompt.size() + 8);
        uint32_t n = 0;
        REQUIRE_OK(tokenize(opened.model.vocabulary, prompt.data(), prompt.size(), {}, work.data(), work.size() * 4,
                            ids.data(), static_cast<uint32_t>(ids.size()), &n));
        REQUIRE(n <= want.size());
        CHECK(std::equal(want.begin(), want.begin() + n, ids.begin()));
        ids.resize(n);

        // all logits at the positions that were kept
        const std::vector<float> logits = all_logits(opened.model, plain_options(256), want, 64);
        const weights::File expected =
            weights::map_file(weights::join(weights::join(folder, "expected"), c.find("logits_file")->string));
        size_t k = 0;
        for (const weights::Json& position : c.find("logits_at")->items) {
            std::vector<double> row(512);
            for (double& v : row) v = static_cast<double>(weights::load_f32(expected->data + 4 * k++));
            const auto at = logits.begin() + static_cast<std::ptrdiff_t>(position.integer * 512);
            CHECK(distance(std::vector<float>(at, at + 512), row) < 1e-4);
        }

        // a greedy run, with the cache that sessions have by default
        for (const DType cache : {DType::f32, DType::f16}) {
            Started s(opened.model, plain_options(256, cache));
            GenerateOptions g;
            g.max_tokens = 256 - n;
            g.sampler.temperature = 0;
            std::vector<int32_t> got(256);
            g.tokens = got.data();
            std::string said;
            uint32_t count = 0;
            const Status status = generate(
                s.session, ids.data(), n, g,
                [](void* user, const char* piece, uint32_t size) {
                    static_cast<std::string*>(user)->append(piece, size);
                    return true;
                },
                &said, &count);
            REQUIRE_OK(status);
            got.resize(count);
            got.insert(got.begin(), ids.begin(), ids.end());
            if (cache == DType::f32) CHECK(got == want);
            else CHECK(std::equal(want.begin(), want.begin() + 40, got.begin()));
            const std::string whole = c.find("text")->string;
            if (cache == DType::f32 && prompt.empty()) CHECK(contains(whole, said));
        }
    }
}
