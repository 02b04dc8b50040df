// Text to ids and back, held against SentencePiece (tests/data, made by make_data.py); the sampler, held against its
// definition; and the loop that generates: stop ids, callbacks, limits, and what is left of the session afterwards.
#include "data/numpy_logits.hpp"
#include "data/sentencepiece.hpp"
#include "helpers.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

using namespace test;
using namespace transformer;

namespace {

weights::VocabularySource source_of(const sentencepiece::Vocabulary& v)
{
    weights::VocabularySource s;
    s.kind = VocabularyKind::sentencepiece_bpe;
    s.flags = (v.byte_fallback ? vocabulary_byte_fallback : 0u) | (v.dummy_prefix ? vocabulary_dummy_prefix : 0u) |
              vocabulary_add_bos | vocabulary_fuse_unknown;
    const char* text = v.text;
    const TokenType types[] = {TokenType::unused,       TokenType::normal, TokenType::unknown, TokenType::control,
                               TokenType::user_defined, TokenType::unused, TokenType::byte};
    for (uint32_t i = 0; i < v.n_tokens; i++) {
        s.tokens.emplace_back(text, v.lengths[i]);
        s.scores.push_back(v.scores[i]);
        s.types.push_back(types[v.types[i]]);
        text += v.lengths[i];
    }
    s.unknown = 0;
    s.bos = 1;
    s.eos = 2;
    s.stop = {2};
    return s;
}
TestModel with_vocabulary(weights::VocabularySource v)
{
    TestModel m = tiny_llama();
    m.vocabulary = std::move(v);
    return m;
}
const sentencepiece::Vocabulary& vocabulary_named(const std::string& name)
{
    for (const sentencepiece::Vocabulary& v : sentencepiece::vocabularies)
        if (name == v.name) return v;
    return sentencepiece::vocabularies[0];
}
std::vector<std::string> texts()
{
    std::vector<std::string> list;
    const char* text = sentencepiece::texts;
    for (uint32_t i = 0; i < sentencepiece::n_texts; i++) {
        list.emplace_back(text, sentencepiece::text_lengths[i]);
        text += sentencepiece::text_lengths[i];
    }
    return list;
}

// Ids of a text, in exactly as much work memory as is asked for.
std::vector<int32_t> ids_of(const Vocabulary& v, const std::string& text, bool add_special = false,
                            bool parse_special = false)
{
    const uint64_t size = tokenize_size(v, text.size());
    AlignedBytes work(size), copy(text.size());                // a sanitizer sees a read behind the text
    if (!text.empty()) std::memcpy(copy.data, text.data(), text.size());
    std::vector<int32_t> ids(3 * text.size() + 8);              // a broken byte becomes the three of U+FFFD
    uint32_t n = 0;
    const TokenizeOptions options = {add_special, parse_special};
    const char* const from = static_cast<const char*>(static_cast<const void*>(copy.data));
    REQUIRE_OK(tokenize(v, from, text.size(), options, work.data, work.size, ids.data(),
                        static_cast<uint32_t>(ids.size()), &n));
    ids.resize(n);
    return ids;
}

bool append(void* user, const char* text, uint32_t n)
{
    static_cast<std::string*>(user)->append(text, n);
    return true;
}
bool ignore(void*, const char*, uint32_t) { return true; }

std::string text_of(const Vocabulary& v, const std::vector<int32_t>& ids, bool special = false)
{
    std::string out;
    Decoder d;
    d.special = special;
    for (const int32_t id : ids) REQUIRE(detokenize(v, d, id, append, &out));
    REQUIRE(detokenize_flush(d, append, &out));
    return out;
}

bool is_utf8(const std::string& s)
{
    for (size_t i = 0; i < s.size();) {
        const auto at = [&](size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
        const unsigned c = at(i);
        const size_t n = c < 0x80                ? 1
                         : c >= 0xc2 && c < 0xe0 ? 2
                         : c >= 0xe0 && c < 0xf0 ? 3
                         : c >= 0xf0 && c < 0xf5 ? 4
                                                 : 0;
        if (!n) return false;
        for (size_t k = 1; k < n; k++)
            if (at(i + k) < 0x80 || at(i + k) > 0xbf) return false;
        if ((c == 0xe0 && at(i + 1) < 0xa0) || (c == 0xed && at(i + 1) > 0x9f) || (c == 0xf0 && at(i + 1) < 0x90) ||
            (c == 0xf4 && at(i + 1) > 0x8f))
            return false;
        i += n;
    }
    return true;
}

}  // namespace

// ---- Text to ids ----------------------------------------------------------------------------------------------------

TEST_CASE("ids are SentencePiece's, with and without a space put in front, with and without pieces for bytes")
{
    const std::vector<std::string> list = texts();
    for (const sentencepiece::Vocabulary& v : sentencepiece::vocabularies) {
        const Opened opened(with_vocabulary(source_of(v)));
        const int32_t* expected = v.ids;
        for (const std::string& text : list) {
            const std::vector<int32_t> want(expected + 1, expected + 1 + *expected);
            expected += 1 + *expected;
            INFO("vocabulary " << std::string(v.name) << ", text \"" << text << "\"");
            CHECK(ids_of(opened.model.vocabulary, text) == want);
        }
    }
}

TEST_CASE("text comes back from its ids, whatever is in it; bytes that are not UTF-8 as U+FFFD")
{
    std::vector<std::string> list = texts();
    list.push_back(std::string("\0a\0", 3));
    list.push_back("\xff\xfe broken \xe7\x99 utf-8 \xf0\x9f");
    Random r{3};
    for (int i = 0; i < 200; i++) {
        std::string s;
        for (uint32_t n = r.below(30); n; n--) s += static_cast<char>(r.below(256));
        list.push_back(s);
    }
    for (const char* name : {"hand_made", "no_prefix", "trained"}) {
        const Opened opened(with_vocabulary(source_of(vocabulary_named(name))));
        for (std::string text : list) {
            const std::vector<int32_t> ids = ids_of(opened.model.vocabulary, text);
            for (size_t at; (at = text.find("\xe2\x96\x81")) != std::string::npos;)
                text.replace(at, 3, " "); // the mark is a space
            INFO("vocabulary " << std::string(name) << ", text \"" << text << "\"");
            const std::string back = text_of(opened.model.vocabulary, ids);
            if (is_utf8(text)) CHECK(back == text);
            else CHECK((is_utf8(back) && contains(back, "\xef\xbf\xbd")));
            const int32_t n = static_cast<int32_t>(opened.model.vocabulary.n_tokens);
            CHECK(std::all_of(ids.begin(), ids.end(), [&](int32_t id) { return id >= 0 && id < n; }));
        }
    }
}

TEST_CASE("bytes stand in for characters without a piece, and text that spells a byte piece stays text")
{
    const Opened opened(with_vocabulary(source_of(vocabulary_named("no_prefix"))));
    const Vocabulary& v = opened.model.vocabulary;
    CHECK(ids_of(v, "\n") == std::vector<int32_t>{3 + 10});
    CHECK(ids_of(v, "\x7f") == std::vector<int32_t>{3 + 0x7f});
    CHECK(ids_of(v, "\xf0\x9f\xa6\x99") == std::vector<int32_t>{3 + 0xf0, 3 + 0x9f, 3 + 0xa6, 3 + 0x99});
    const std::vector<int32_t> spelled = ids_of(v, "<0x40>");
    CHECK(spelled.size() == 6);
    CHECK(std::find(spelled.begin(), spelled.end(), 3 + 0x40) == spelled.end());
    CHECK(text_of(v, {3 + 0x40}) == "@");
    const Opened no_bytes(with_vocabulary(source_of(vocabulary_named("no_bytes"))));
    for (const int32_t id : ids_of(no_bytes.model.vocabulary, "\n\xf0\x9f\xa6\x99 q")) CHECK(id >= 0);
}

TEST_CASE("without pieces for bytes and without an unknown token no strange character becomes an id of -1")
{
    weights::VocabularySource s = source_of(vocabulary_named("no_bytes"));
    s.unknown = -1;
    s.types[0] = TokenType::normal;
    const Opened opened(with_vocabulary(s));
    const Vocabulary& v = opened.model.vocabulary;
    for (const std::string& text : texts()) {
        std::vector<uint32_t> work(static_cast<size_t>(tokenize_size(v, text.size())) / 4 + 1);
        std::vector<int32_t> ids(3 * text.size() + 8, 777);
        uint32_t n = 77;
        const Status status = tokenize(v, text.data(), text.size(), {}, work.data(), work.size() * 4, ids.data(),
                                       static_cast<uint32_t>(ids.size()), &n);
        CHECK((status.code == Code::ok || (status.code == Code::bad_vocabulary && n == 0)));
        for (uint32_t i = 0; i < n; i++) CHECK((ids[i] >= 0 && ids[i] < 44));
    }
}

TEST_CASE("there is one BOS: as the vocabulary asks, as the caller asks, and not twice")
{
    const Opened opened(with_vocabulary(source_of(vocabulary_named("hand_made"))));
    const Vocabulary& v = opened.model.vocabulary;
    const auto count = [&](const std::string& text, bool add, bool parse) {
        const std::vector<int32_t> ids = ids_of(v, text, add, parse);
        return std::count(ids.begin(), ids.end(), 1);
    };
    CHECK(count("hi", true, true) == 1);
    CHECK(count("hi", true, false) == 1);
    CHECK(count("hi", false, true) == 0);
    CHECK(count("<s>hi", true, true) == 1);
    CHECK(count("<s>hi", false, true) == 1);
    CHECK(count("<s>hi", true, false) == 1);                   // literal text, and the BOS that was asked for
    CHECK(count("<s>hi", false, false) == 0);
    CHECK(count("hi<s>", true, true) == 2);                    // as written
    CHECK(ids_of(v, "<s>hi", true, true) == ids_of(v, "<s>hi", false, true));
    CHECK(ids_of(v, "", true, true) == std::vector<int32_t>{1});
    CHECK(ids_of(v, "", false, true).empty());
    weights::VocabularySource s = source_of(vocabulary_named("hand_made"));
    s.flags |= vocabulary_add_eos;
    const Opened both(with_vocabulary(s));
    CHECK(ids_of(both.model.vocabulary, "", true) == std::vector<int32_t>{1, 2});
    CHECK(ids_of(both.model.vocabulary, "a", true).back() == 2);
}

TEST_CASE("a vocabulary without a BOS puts nothing in front")
{
    weights::VocabularySource s = source_of(vocabulary_named("hand_made"));
    s.bos = -1;
    const Opened opened(with_vocabulary(s));
    const Vocabulary& v = opened.model.vocabulary;
    CHECK(ids_of(v, "hi", true, true) == ids_of(v, "hi", false, true));
    CHECK(ids_of(v, "", true, true).empty());
    Started run(opened.model, plain_options(16));
    GenerateOptions g;
    CHECK(generate(run.session, nullptr, 0, g, ignore, nullptr).code ==
          Code::bad_argument); // an empty prompt has no start
}

TEST_CASE("special tokens in the text are found, the longest first, only where that is asked for")
{
    weights::VocabularySource s = source_of(vocabulary_named("no_prefix"));
    const auto add = [&](const char* text, TokenType type) {
        s.tokens.push_back(text);
        s.types.push_back(type);
        s.scores.push_back(0);
        return static_cast<int32_t>(s.tokens.size() - 1);
    };
    const int32_t turn = add("<|turn|>", TokenType::control), longer = add("<|turn|>user", TokenType::control),
                  user = add("[tool]", TokenType::user_defined);
    add("", TokenType::control);                               // matches nowhere
    const Opened opened(with_vocabulary(s));
    const Vocabulary& v = opened.model.vocabulary;
    const auto joined = [](std::vector<std::vector<int32_t>> parts) {
        std::vector<int32_t> all;
        for (const auto& p : parts) all.insert(all.end(), p.begin(), p.end());
        return all;
    };
    CHECK(ids_of(v, "a<|turn|>b", false, true) == joined({ids_of(v, "a"), {turn}, ids_of(v, "b")}));
    CHECK(ids_of(v, "<|turn|>user", false, true) == std::vector<int32_t>{longer});
    CHECK(ids_of(v, "<|turn|>us<|turn|>", false, true) == joined({{turn}, ids_of(v, "us"), {turn}}));
    CHECK(ids_of(v, "[tool][tool]", false, true) == std::vector<int32_t>{user, user});
    for (const int32_t id : ids_of(v, "<|turn|>[x]")) CHECK((id != turn && id != longer));
    CHECK(text_of(v, {turn, user}) == "[tool]");               // control tokens are not shown
    CHECK(text_of(v, {turn, user}, true) == "<|turn|>[tool]");
    CHECK(token_id(v, "<|turn|>", 8) == turn);
    CHECK(token_id(v, "nothing", 7) == -1);
}

TEST_CASE("tokenize() says what it needs and writes no more than it may")
{
    const Opened opened(with_vocabulary(source_of(vocabulary_named("hand_made"))));
    const Vocabulary& v = opened.model.vocabulary;
    const std::string text = "This is hello.";
    const std::vector<int32_t> want = ids_of(v, text, true, true);
    std::vector<uint32_t> work(static_cast<size_t>(tokenize_size(v, text.size())) / 4 + 2);
    std::vector<int32_t> ids(want.size() + 1, 777);
    uint32_t n = 0;
    const auto call = [&](uint64_t size, uint32_t capacity, size_t shift = 0) {
        return tokenize(v, text.data(), text.size(), {}, reinterpret_cast<unsigned char*>(work.data()) + shift, size,
                        ids.data(), capacity, &n);
    };
    for (uint32_t capacity = 0; capacity < want.size(); capacity++) {
        std::fill(ids.begin(), ids.end(), 777);
        const Status status = call(work.size() * 4, capacity);
        CHECK(status.code == Code::memory_too_small);
        CHECK(std::string(status.field) == "ids");
        CHECK(status.where == want.size());
        CHECK(n == 0);
        CHECK(std::count(ids.begin(), ids.end(), 777) == static_cast<std::ptrdiff_t>(ids.size() - capacity));
    }
    CHECK(call(work.size() * 4, static_cast<uint32_t>(want.size())).code == Code::ok);
    CHECK(n == want.size());
    CHECK(ids.back() == 777);
    const Status status = call(tokenize_size(v, text.size()) - 1, 100);
    CHECK(status.code == Code::memory_too_small);
    CHECK(std::string(status.field) == "work");
    CHECK(status.where == tokenize_size(v, text.size()));
    CHECK(call(0, 100).code == Code::memory_too_small);
    CHECK(call(work.size() * 4 - 4, 100, 1).code == Code::misaligned);
    CHECK(tokenize(v, text.data(), uint64_t{1} << 32, {}, work.data(), UINT64_MAX, ids.data(), 4, &n).code ==
          Code::bad_argument);
    CHECK(tokenize(v, nullptr, 0, {}, work.data(), work.size() * 4, ids.data(), 4, &n).code == Code::ok);
    CHECK(n == 1);
    const Opened none(tiny_llama());
    CHECK(tokenize(none.model.vocabulary, "a", 1, {}, work.data(), work.size() * 4, ids.data(), 4, &n).code ==
          Code::bad_vocabulary);
}

TEST_CASE("a long text costs little more than its length")
{
    const Opened opened(with_vocabulary(source_of(vocabulary_named("hand_made"))));
    const auto begin = std::chrono::steady_clock::now();
    for (const std::string& part : {std::string("a"), std::string("ab"), std::string("This is X.cpp"),
                                    std::string("\xf0\x9f\xa6\x99"), std::string("<"), std::string(" ")}) {
        std::string text;
        while (text.size() < 100000) text += part;
        const std::vector<int32_t> ids = ids_of(opened.model.vocabulary, text, false, true);
        CHECK(text_of(opened.model.vocabulary, ids) == text);
    }
    const bool soon = std::chrono::steady_clock::now() - begin < std::chrono::seconds(20);
    CHECK(soon);
}

TEST_CASE("damaged vocabularies are refused, whatever their chunks say")
{
    weights::VocabularySource s = source_of(vocabulary_named("no_bytes"));
    const AlignedBytes good = with_vocabulary(s).checkpoint();
    const uint64_t at = weights::load_u64(good.data + 24), end = at + weights::load_u64(good.data + 32);
    const auto payload = [&](Chunk tag) {                      // where a chunk's bytes begin
        for (uint64_t i = at; i + 8 <= end; i += 8 + round_up(weights::load_u32(good.data + i + 4), 4))
            if (weights::load_u32(good.data + i) == static_cast<uint32_t>(tag)) return i + 8;
        FAIL("no such chunk");
        return uint64_t{0};
    };
    const auto with = [&](uint64_t where, uint32_t value, int bytes = 4) {
        AlignedBytes changed(good.size);
        std::memcpy(changed.data, good.data, static_cast<size_t>(good.size));
        if (bytes == 4) weights::store_u32(changed.data + where, value);
        else changed.data[where] = static_cast<unsigned char>(value);
        Model model;
        return transformer::open(changed.data, changed.size, &model);
    };
    REQUIRE(with(payload(Chunk::info) + 8, s.unknown == 0 ? static_cast<uint32_t>(s.tokens.size()) : 0).code ==
            Code::ok);
    const auto refused = [&](const Status& status, const char* field) {
        CHECK_MESSAGE((status.code == Code::bad_vocabulary && std::string(status.field) == field), words(status));
    };
    refused(with(payload(Chunk::info), 0), "kind");
    refused(with(payload(Chunk::info), 5), "kind");
    for (const uint32_t n : {0u, 0x7fffffffu, 0xffffffffu, (1u << 24) + 1})
        refused(with(payload(Chunk::info) + 8, n), "n_tokens");
    refused(with(payload(Chunk::info) + 8, 43), "tokens");
    refused(with(payload(Chunk::info) + 8, 1u << 24), "tokens");
    for (uint32_t i = 0; i < 7; i++)
        for (const uint32_t id : {44u, 0x7fffffffu, 0x80000000u, 0xfffffffeu})
            refused(with(payload(Chunk::info) + 12 + 4 * i, id), "info");
    for (const uint32_t growth : {0u, 65u, 0xffffffffu}) refused(with(payload(Chunk::info) + 40, growth), "growth");
    for (const uint32_t id : {44u, 0xffffffffu}) refused(with(payload(Chunk::stop), id), "stop");
    for (const uint32_t offset : {0xffffffffu, 0x7fffffffu, 10000u}) {
        refused(with(payload(Chunk::offsets) + 4 * 7, offset), "offsets");
        refused(with(payload(Chunk::offsets) + 4 * 44, offset), "offsets");
    }
    refused(with(payload(Chunk::offsets) + 4 * 5, 0), "offsets");
    for (const uint32_t n : {0xffffffffu, 0x7fffffffu, 1000u}) refused(with(payload(Chunk::added), n), "added");
    refused(with(payload(Chunk::added) + 4, 44), "added");
    for (const uint32_t n : {0xffffffffu, 100u}) refused(with(payload(Chunk::layout), n), "layout");
    refused(with(payload(Chunk::layout) + 4, 44), "layout");
    for (const uint32_t type : {6u, 255u}) refused(with(payload(Chunk::types) + 9, type, 1), "types");
    for (const Chunk tag : {Chunk::info, Chunk::stop, Chunk::offsets, Chunk::text, Chunk::scores, Chunk::types,
                            Chunk::trie, Chunk::added, Chunk::layout, Chunk::normal})
        for (const uint32_t length : {0xffffffffu, 0x7fffffffu, 0xfffffffcu, static_cast<uint32_t>(end - at)})
            refused(with(payload(tag) - 4, length), "chunk");
    for (const Chunk tag : {Chunk::info, Chunk::offsets, Chunk::text, Chunk::types, Chunk::trie})
        CHECK(with(payload(tag) - 8, 99).code ==
              Code::bad_vocabulary); // a tag that is passed over: the chunk is missing
    CHECK(with(payload(Chunk::scores) - 8, 99).code == Code::ok);
    // any words at all in the trie make text unknown, not unsafe
    Random r{4};
    for (int round = 0; round < 50; round++) {
        AlignedBytes wild(good.size);
        std::memcpy(wild.data, good.data, static_cast<size_t>(good.size));
        const uint64_t trie = payload(Chunk::trie);
        for (uint64_t i = 0; i + 4 <= weights::load_u32(good.data + trie - 4); i += 4)
            if (round == 0 || r.chance(4))
                weights::store_u32(wild.data + trie + i, static_cast<uint32_t>(r.bits() >> (round % 2 ? 32 : 43)));
        const Opened opened(std::move(wild));
        for (const std::string& text : texts()) (void)ids_of(opened.model.vocabulary, text, true, true);
    }
}

TEST_CASE("scores that are no numbers are not written, and if they are there, end in some ids")
{
    weights::VocabularySource s = source_of(vocabulary_named("hand_made"));
    for (size_t i = 0; i < s.scores.size(); i++) s.scores[i] = 1000.0f + static_cast<float>(i);
    AlignedBytes bytes = with_vocabulary(s).checkpoint();
    uint32_t found = 0; // the scores, one after the other, whatever the chunks look like
    const float broken[] = {float_of(0x7fc00000u), HUGE_VALF, -HUGE_VALF};
    for (uint64_t at = weights::load_u64(bytes.data + 24); at + 4 <= bytes.size && found < s.scores.size(); at += 4)
        if (weights::load_u32(bytes.data + at) == bits_of(s.scores[found]))
            weights::store_f32(bytes.data + at, broken[found++ % 3]);
    REQUIRE(found == s.scores.size());
    const Opened opened(std::move(bytes));
    s.scores[7] = broken[0];
    CHECK(error_of([&] { (void)with_vocabulary(s).checkpoint(); }) != "");
    for (const std::string& text : texts())
        CHECK(text_of(opened.model.vocabulary, ids_of(opened.model.vocabulary, text)).size() <= text.size() + 2);
}

// ---- Ids to text ----------------------------------------------------------------------------------------------------

namespace {

// What each call of emit() got.
struct Pieces {
    std::vector<std::string> list;
    static bool emit(void* user, const char* text, uint32_t n)
    {
        static_cast<Pieces*>(user)->list.emplace_back(text, n);
        return true;
    }
    std::string all() const { return std::accumulate(list.begin(), list.end(), std::string()); }
};

// A vocabulary of these byte strings, and a model whose next id is the one behind the last.
TestModel chain(const std::vector<std::string>& tokens, const std::vector<int32_t>& stop = {})
{
    const uint32_t n = static_cast<uint32_t>(tokens.size());
    Config c = small_config(n, 1, 1, 1, 1, 2, n);
    Slots s;
    s.pre = s.final_norm = false;
    TestModel m = make_model(c, s, 1);
    for (auto& entry : m.tensors) std::fill(entry.second.values.begin(), entry.second.values.end(), 0.0f);
    for (uint32_t i = 0; i < n; i++) {
        m.at(0, 0, Role::token_embedding).values[i * n + i] = 1;
        m.at(0, 0, Role::lm_head).values[(i + 1) % n * n + i] = 30;
    }
    m.vocabulary.kind = VocabularyKind::sentencepiece_bpe;
    m.vocabulary.tokens = tokens;
    m.vocabulary.stop = stop;
    m.vocabulary.types.assign(n, TokenType::normal);
    return m;
}

}  // namespace

TEST_CASE("a stream of ids gives whole characters only, and what is left at the end as it is or as U+FFFD")
{
    const std::vector<std::string> tokens = {"\xe7", "\x99\xba", "\xf0\x9f", "\xa6",     "\x99",
                                             "\xe7", "a",        "\xff",     "\xe7\x99", "\xba\xe7\x99\xba\xe7"};
    const Opened opened(chain(tokens));
    const Vocabulary& v = opened.model.vocabulary;
    const auto stream = [&](const std::vector<int32_t>& ids, bool replace, Pieces& pieces) {
        Decoder d;
        d.replace_invalid = replace;
        d.started = true;
        for (const int32_t id : ids) REQUIRE(detokenize(v, d, id, Pieces::emit, &pieces));
        REQUIRE(detokenize_flush(d, Pieces::emit, &pieces));
    };
    for (const bool replace : {false, true}) {
        Pieces p;
        stream({0, 1, 2, 3, 4, 5}, replace, p);
        REQUIRE(p.list.size() == 3);
        CHECK(p.list[0] == "\xe7\x99\xba");
        CHECK(p.list[1] == "\xf0\x9f\xa6\x99");
        CHECK(p.list[2] == (replace ? "\xef\xbf\xbd" : "\xe7"));
        Pieces q;
        stream({8, 9, 1, 6}, replace, q);
        CHECK(q.all() == "\xe7\x99\xba\xe7\x99\xba\xe7\x99\xba" "a");
        for (const std::string& one : q.list) CHECK(is_utf8(one));
        Pieces broken;
        stream({5, 6, 7, 6, 2, 6}, replace, broken);           // beginnings that are never finished
        CHECK(broken.all() == (replace ? "\xef\xbf\xbd"
                                         "a\xef\xbf\xbd"
                                         "a\xef\xbf\xbd\xef\xbf\xbd"
                                         "a"
                                       : "\xe7"
                                         "a\xff"
                                         "a\xf0\x9f"
                                         "a"));
        if (replace)
            for (const std::string& one : broken.list) CHECK(is_utf8(one));
    }
}

TEST_CASE("text that is cut into bytes anywhere comes out in whole characters")
{
    const Opened opened(with_vocabulary(source_of(vocabulary_named("no_prefix"))));
    const std::string text =
        "a\xc3\xb6\xd0\xbf\xe2\x82\xac\xe7\x99\xba\xf0\x9f\xa6\x99\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"
        "z";
    for (const bool replace : {false, true}) {
        Decoder d;
        d.replace_invalid = replace;
        Pieces p;
        for (const char c : text)
            REQUIRE(detokenize(opened.model.vocabulary, d, 3 + static_cast<unsigned char>(c), Pieces::emit, &p));
        CHECK(d.n_pending == 0);
        CHECK(p.all() == text);
        for (const std::string& one : p.list) CHECK(is_utf8(one));
    }
    // anything at all: with U+FFFD every piece is UTF-8, without it every byte is there
    Random r{8};
    for (int i = 0; i < 2000; i++) {
        std::string bytes;
        const char sample[] = {'a',    '\x80', '\xbf', '\xc3', '\xc0', '\xe0', '\xe7', '\xed',
                               '\xf0', '\xf4', '\xf8', '\xff', '\x9f', '\xa0', '\x90'};
        for (uint32_t n = r.below(12); n; n--) bytes += sample[r.below(sizeof sample)];
        Decoder raw, replaced;
        replaced.replace_invalid = true;
        Pieces a, b;
        for (const char c : bytes) {
            const int32_t id = 3 + static_cast<unsigned char>(c);
            REQUIRE((detokenize(opened.model.vocabulary, raw, id, Pieces::emit, &a) &&
                     detokenize(opened.model.vocabulary, replaced, id, Pieces::emit, &b)));
        }
        REQUIRE((detokenize_flush(raw, Pieces::emit, &a) && detokenize_flush(replaced, Pieces::emit, &b)));
        CHECK(a.all() == bytes);
        for (const std::string& one : b.list) CHECK(is_utf8(one));
    }
}

TEST_CASE("the space that was put in front of the text goes, once, and ids outside the vocabulary say nothing")
{
    const Opened opened(with_vocabulary(source_of(vocabulary_named("hand_made"))));
    const Vocabulary& v = opened.model.vocabulary;
    CHECK(text_of(v, ids_of(v, "hello hello")) == "hello hello");
    CHECK(text_of(v, ids_of(v, " hello")) == " hello");
    CHECK(text_of(v, ids_of(v, "hello", true)) == "hello");    // the BOS before it does not count
    CHECK(text_of(v, {-1, 300, INT32_MAX, INT32_MIN}) == "");
    uint32_t n = 77;
    CHECK(*token_text(v, -1, &n) == '\0');
    CHECK(n == 0);
    CHECK(*token_text(v, 300, &n) == '\0');
    CHECK(n == 0);
    Decoder d;
    const std::vector<int32_t> ids = ids_of(v, "hello");
    CHECK_FALSE(detokenize(v, d, ids[0], [](void*, const char*, uint32_t) { return false; }, nullptr));
}

// ---- The sampler ----------------------------------------------------------------------------------------------------

namespace {

std::vector<float> logits_of(const std::vector<double>& probabilities)
{
    std::vector<float> out;
    for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p)));
    return out;
}
// How many tokens could have been drawn: sample() leaves their weights behind.
size_t survivors(Sampler s, std::vector<float> logits)
{
    int32_t token = -1;
    REQUIRE_OK(sample(s, logits.data(), static_cast<uint32_t>(logits.size()), &token));
    REQUIRE(token >= 0);
    REQUIRE(static_cast<size_t>(token) < logits.size());
    CHECK(logits[static_cast<size_t>(token)] > 0);
    return static_cast<size_t>(std::count_if(logits.begin(), logits.end(), [](float w) { return w > 0; }));
}
Sampler sampler(float temperature, uint32_t top_k = 0, float top_p = 1, float min_p = 0)
{
    Sampler s;
    s.temperature = temperature;
    s.top_k = top_k;
    s.top_p = top_p;
    s.min_p = min_p;
    return s;
}

}  // namespace

TEST_CASE("top-p keeps the smallest set that reaches p, and at least one token")
{
    for (const auto& order : {std::vector<double>{0.5, 0.3, 0.2}, {0.2, 0.5, 0.3}, {0.3, 0.2, 0.5}}) {
        const std::vector<float> logits = logits_of(order);
        for (const auto& c : {std::make_pair(0.49f, 1u),
                              {0.6f, 2u},
                              {0.79f, 2u},
                              {0.81f, 3u},
                              {1.0f, 3u},
                              {0.0f, 1u},
                              {-1.0f, 1u},
                              {2.0f, 3u}}) {
            INFO("p " << c.first);
            CHECK(survivors(sampler(1, 0, c.first), logits) == c.second);
        }
    }
    std::vector<double> many(1000, 0.001); // the sum of a thousand floats is not 1, and yet all stay
    CHECK(survivors(sampler(1), logits_of(many)) == 1000);
    CHECK(survivors(sampler(1, 0, 0.9999999f), logits_of(many)) >= 999);
}

TEST_CASE("temperature 0 takes the best token whatever else is set, and the lowest of equals")
{
    for (const float p : {0.0f, 0.9f, 1.0f})
        for (uint64_t seed = 1; seed <= 50; seed++) {
            Sampler s = sampler(0, seed % 3 ? 0 : 2, p, 0.5f);
            s.seed = seed;
            float logits[] = {0.1f, 2.0f, 2.0f, 1.9f};
            int32_t token = -1;
            REQUIRE_OK(sample(s, logits, 4, &token));
            CHECK(token == 1);
        }
    for (const float temperature : {0.0f, -1.0f, float_of(0x7fc00000u)}) {
        Sampler s = sampler(temperature);
        float logits[] = {-5, -4, -4};
        int32_t token = -1;
        REQUIRE_OK(sample(s, logits, 3, &token));
        CHECK(token == 1);
    }
}

TEST_CASE("after any filters one token survives")
{
    const std::vector<float> logits = logits_of({0.3, 0.3, 0.2, 0.2});
    CHECK(survivors(sampler(1, 1, 0.8f), logits) == 1);
    CHECK(survivors(sampler(1, 2, 0.8f), logits) == 2);        // p counts among what top-k left
    CHECK(survivors(sampler(1, 3, 0.01f, 1), logits) == 1);
    CHECK(survivors(sampler(1, 4, 1, 0.9f), logits) == 2);
    CHECK(survivors(sampler(1, 0, 1, 0.5f), logits) == 4);
    CHECK(survivors(sampler(1, 100, 1), logits) == 4);
    for (uint64_t seed = 1; seed < 300; seed++) {
        Random r{seed};
        std::vector<float> any(r.between(1, 60));
        for (float& x : any) x = r.number() * static_cast<float>(r.between(1, 100));
        Sampler s = sampler(0.01f + 2 * std::fabs(r.number()), r.below(70), r.number(), std::fabs(r.number()));
        s.seed = seed;
        CHECK(survivors(s, any) >= 1);
    }
}

TEST_CASE("of equal tokens at the border of a filter the lowest ids stay")
{
    Sampler s = sampler(1, 2);
    std::vector<float> logits = {1, 3, 2, 2, 2, 3};
    int32_t token;
    REQUIRE_OK(sample(s, logits.data(), 6, &token));
    CHECK(logits == std::vector<float>{0, 1, 0, 0, 0, 1});
    s = sampler(1, 3);
    logits = {1, 3, 2, 2, 2, 3};
    REQUIRE_OK(sample(s, logits.data(), 6, &token));
    CHECK(logits[2] > 0);
    CHECK(logits[3] == 0);
    s = sampler(1, 0, 0.3f);
    logits = {5, 5, 5, 5};
    REQUIRE_OK(sample(s, logits.data(), 4, &token));
    CHECK(logits == std::vector<float>{1, 1, 0, 0});
}

TEST_CASE("a logit that is no number is an error, and infinities have a defined result")
{
    const float nan = float_of(0x7fc00000u);
    for (const float temperature : {0.0f, 1.0f}) {
        for (size_t at = 0; at < 3; at++) {
            Sampler s = sampler(temperature);
            float logits[] = {1, 2, 3};
            logits[at] = at == 1 ? float_of(0xffc00001u) : nan;
            int32_t token = -7;
            const Status status = sample(s, logits, 3, &token);
            CHECK(status.code == Code::not_a_number);
            CHECK(status.where == at);
            CHECK(token == -7);
            CHECK(s.n_recent == 0);
        }
        for (const auto& row : {std::vector<float>{1, HUGE_VALF, 2, HUGE_VALF},
                                {-HUGE_VALF, -HUGE_VALF},
                                {-HUGE_VALF, 1, -HUGE_VALF},
                                {HUGE_VALF},
                                {-HUGE_VALF}})
            for (const float p : {1.0f, 0.5f, 0.0f})
                for (uint64_t seed = 1; seed < 20; seed++) {
                    std::vector<float> logits = row;
                    Sampler s = sampler(temperature, static_cast<uint32_t>(seed % 3), p, 0.1f);
                    s.seed = seed;
                    int32_t token = -1;
                    REQUIRE_OK(sample(s, logits.data(), static_cast<uint32_t>(logits.size()), &token));
                    CHECK(row[static_cast<size_t>(token)] == *std::max_element(row.begin(), row.end()));
                }
    }
    Sampler s;
    int32_t token;
    CHECK(sample(s, nullptr, 0, &token).code == Code::bad_argument);
    for (const float penalty : {0.0f, HUGE_VALF, -1.0f, nan, 1e-38f}) { // an odd penalty: an error or a token
        s = sampler(1);
        s.repeat_penalty = penalty;
        s.recent[0] = 1;
        s.recent[1] = 2;
        s.n_recent = 2;
        std::vector<float> logits = {1, 2, -3, -HUGE_VALF};
        token = -1;
        const Status status = sample(s, logits.data(), 4, &token);
        CHECK((status.code == Code::not_a_number || (token >= 0 && token < 4)));
    }
}

TEST_CASE("a seed gives the sequence that the definition gives, here and everywhere")
{
    struct Case {
        Sampler sampler;
        uint64_t seed;
        const int32_t* want;
    };
    const Case cases[] = {{sampler(1), 1, numpy::draws_plain},
                          {sampler(0.75f, 0, 0.9f), 42, numpy::draws_warm},
                          {sampler(1.5f, 5, 0.8f), 7, numpy::draws_top_k}};
    for (const Case& c : cases) {
        Sampler s = c.sampler;
        s.seed = c.seed;
        std::vector<int32_t> got, want(c.want, c.want + 64);
        for (int i = 0; i < 64; i++) {
            std::vector<float> logits(numpy::sampler_logits, numpy::sampler_logits + 20);
            int32_t token;
            REQUIRE_OK(sample(s, logits.data(), 20, &token));
            got.push_back(token);
        }
        CHECK(got == want);
    }
    std::vector<float> first(50), second(50);
    Sampler zero = sampler(1);                                 // seed 0 is a seed like any other
    zero.seed = 0;
    for (int i = 0; i < 10; i++) {
        int32_t token = -1;
        REQUIRE_OK(sample(zero, first.data(), 50, &token));
        CHECK(token >= 0);
        std::fill(first.begin(), first.end(), 0.0f);
    }
}

TEST_CASE("tokens are drawn as often as their probability says")
{
    const std::vector<double> p = {0.05, 0.4, 0.15, 0.3, 0.1};
    Sampler s = sampler(1);
    std::vector<int> counts(5);
    const int draws = 50000;
    for (int i = 0; i < draws; i++) {
        std::vector<float> logits = logits_of(p);
        int32_t token;
        REQUIRE_OK(sample(s, logits.data(), 5, &token));
        counts[static_cast<size_t>(token)]++;
    }
    double chi = 0;
    for (size_t i = 0; i < 5; i++) chi += (counts[i] - draws * p[i]) * (counts[i] - draws * p[i]) / (draws * p[i]);
    CHECK(chi < 18.5);                                         // 4 degrees of freedom: one in a thousand
}

TEST_CASE("the penalty falls on the last 64 tokens, once each")
{
    Sampler s = sampler(0);
    s.repeat_penalty = 2;
    const auto next = [&](std::vector<float> logits) {
        int32_t token;
        REQUIRE_OK(sample(s, logits.data(), static_cast<uint32_t>(logits.size()), &token));
        return token;
    };
    CHECK(next({4, 3, 1}) == 0);
    CHECK(next({4, 3, 1}) == 1);                               // 0 counts 2 now
    CHECK(next({4, 3, 1.9f}) == 0);                            // 2, 1.5, 1.9
    CHECK(next({4, 3, 2.1f}) == 2);                            // 0 was drawn twice and is halved once
    CHECK(next({-1, -1.5f, -3}) == 0);                         // all are recent: -2, -3, -6
    s = sampler(0);
    s.repeat_penalty = 2;
    CHECK(next({-1, -1.5f}) == 0);
    CHECK(next({-1, -1.5f}) == 1);                             // negative ones are doubled: -2
    s = sampler(0);
    s.repeat_penalty = 100;
    CHECK(next({4, 3}) == 0);
    for (int i = 0; i < 63; i++) CHECK(next({4, 3}) != (i == 0 ? 0 : -1));
    s = sampler(0);
    s.repeat_penalty = 100;
    s.recent[0] = 0;
    for (int i = 1; i < 64; i++) s.recent[i] = 1;
    s.n_recent = 64;
    CHECK(next({4, 3, 1}) == 2);                               // all are recent but 2; this pushes the 0 out
    CHECK(next({4, 3, 1}) == 0);
    s.recent[5] = -1;                                          // ids that are none are passed over
    s.recent[6] = INT32_MAX;
    (void)next({4, 3, 1});
}

// ---- Generating -----------------------------------------------------------------------------------------------------

namespace {

struct Talk {                                                  // what emit() got, and when it says no
    std::string said;
    int calls = 0, stop_at = -1;
    static bool emit(void* user, const char* text, uint32_t n)
    {
        Talk& t = *static_cast<Talk*>(user);
        t.said.append(text, n);
        return ++t.calls != t.stop_at;
    }
};
GenerateOptions greedy(uint32_t n)
{
    GenerateOptions g;
    g.max_tokens = n;
    g.sampler.temperature = 0;
    return g;
}
const std::vector<std::string>& letters()
{
    static const std::vector<std::string> list = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    return list;
}

}  // namespace

TEST_CASE("generation stops at the first of several stop ids, which is not shown")
{
    const Opened opened(chain(letters(), {7, 2}));
    for (const auto& [start, want, count] :
         {std::make_tuple(4, "fg", 2u), std::make_tuple(8, "jab", 3u), std::make_tuple(1, "", 0u)}) {
        Started run(opened.model, plain_options(20));
        GenerateOptions g = greedy(15);
        Talk talk;
        uint32_t n = 99;
        const int32_t id = start;
        REQUIRE_OK(generate(run.session, &id, 1, g, Talk::emit, &talk, &n));
        CHECK(talk.said == want);
        CHECK(n == count);
        CHECK(is_stop(opened.model.vocabulary, 7));
        CHECK_FALSE(is_stop(opened.model.vocabulary, 6));
    }
    Started run(opened.model, plain_options(20));
    GenerateOptions g = greedy(6);
    g.ignore_stop = true;
    int32_t tokens[6] = {};
    g.tokens = tokens;
    Talk talk;
    const int32_t id = 4;
    REQUIRE_OK(generate(run.session, &id, 1, g, Talk::emit, &talk));
    CHECK(talk.said == "fghija");
    for (int i = 0; i < 6; i++) CHECK(tokens[i] == (5 + i) % 10);
}

TEST_CASE("generated text comes in whole characters, with what is left at the end")
{
    const Opened opened(chain({"x", "\xe7", "\x99\xba", "\xf0\x9f", "\xa6", "\x99", "\xe7", "stop"}, {7}));
    Started run(opened.model, plain_options(20));
    GenerateOptions g = greedy(15);
    Pieces p;
    const int32_t id = 0;
    REQUIRE_OK(generate(run.session, &id, 1, g, Pieces::emit, &p));
    p.list.erase(std::remove(p.list.begin(), p.list.end(), ""), p.list.end());
    REQUIRE(p.list.size() == 3);
    CHECK(p.list[0] == "\xe7\x99\xba");
    CHECK(p.list[1] == "\xf0\x9f\xa6\x99");
    CHECK(p.list[2] == "\xe7");
}

TEST_CASE("generation ends at the number of tokens, or where the session is full, and never beyond")
{
    const Opened opened(chain(letters()));
    for (const uint32_t limit : {0u, 1u, 12u, 13u, 14u, 1000000u, 0xffffffffu})
        for (const uint32_t batch : {1u, 16u}) {
            Options o = plain_options(16);
            o.batch = batch;
            Started run(opened.model, o);
            GenerateOptions g = greedy(limit);
            Talk talk;
            uint32_t n = 99;
            const int32_t ids[] = {0, 1, 2, 3};
            const Status status = generate(run.session, ids, 4, g, Talk::emit, &talk, &n);
            INFO("limit " << limit);
            CHECK(n == std::min(limit, 13u));                  // 12 find room, and the one after them is known too
            CHECK(talk.said == std::string("efghijabcdefg").substr(0, n));
            CHECK((status.code == (limit > 13 ? Code::session_full : Code::ok)));
            CHECK(run.session.position == (limit > 12 ? 16 : 3 + std::max(limit, 1u)));
            if (limit > 13) CHECK(status.where == 16);
        }
}

TEST_CASE("a prompt longer than the session is refused before anything is done")
{
    const Opened opened(tiny_llama());
    for (const uint32_t length : {15u, 16u, 17u, 5000u}) {
        Options o = plain_options(16);
        o.batch = 4;
        Started run(opened.model, o);
        GenerateOptions g = greedy(1);
        g.ignore_stop = true;
        Talk talk;
        const auto ids = random_tokens(length, 64);
        const Status status = generate(run.session, ids.data(), length, g, Talk::emit, &talk);
        if (length <= 16) REQUIRE_OK(status);
        else {
            CHECK(status.code == Code::session_full);
            CHECK(status.where == length);
            CHECK(talk.calls == 0);
            CHECK(run.session.position == 0);
        }
    }
}

TEST_CASE("an empty prompt is an error")
{
    const Opened opened(tiny_llama());
    Started run(opened.model, plain_options(16));
    GenerateOptions g = greedy(4);
    const int32_t id = 1;
    uint32_t n = 99;
    CHECK(generate(run.session, &id, 0, g, ignore, nullptr, &n).code == Code::bad_argument);
    CHECK(n == 0);
    CHECK(generate(run.session, nullptr, 3, g, ignore, nullptr).code == Code::bad_argument);
    const int32_t wrong[] = {1, 64};
    CHECK(generate(run.session, wrong, 2, g, ignore, nullptr).code == Code::bad_token);
    CHECK(run.session.position == 0);
}

TEST_CASE("a callback that stops during the prompt leaves the session as it was")
{
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(12, 64);
    Options o = plain_options(40);
    o.batch = 1;
    const auto fresh = [&] {
        Started run(opened.model, o);
        GenerateOptions g = greedy(8);
        g.ignore_stop = true;
        std::vector<int32_t> tokens(8);
        g.tokens = tokens.data();
        REQUIRE_OK(generate(run.session, ids.data(), 12, g, ignore, nullptr));
        return tokens;
    }();
    for (int stop = 1; stop <= 12; stop++) {
        Started run(opened.model, o);
        GenerateOptions g = greedy(8);
        Talk talk;
        talk.stop_at = stop;
        uint32_t n = 99;
        const Status status = generate(run.session, ids.data(), 12, g, Talk::emit, &talk, &n);
        CHECK(status.code == Code::cancelled);
        CHECK(talk.calls == stop);
        CHECK(talk.said == "");
        CHECK(n == 0);
        CHECK(run.session.position == 0);
        GenerateOptions again = greedy(8);
        again.ignore_stop = true;
        std::vector<int32_t> tokens(8);
        again.tokens = tokens.data();
        REQUIRE_OK(generate(run.session, ids.data(), 12, again, ignore, nullptr));
        CHECK(tokens == fresh);
    }
}

TEST_CASE("a callback that stops during the output ends it at once, and the session goes on from there")
{
    const Opened opened(chain(letters()));
    Started run(opened.model, plain_options(40));
    GenerateOptions g = greedy(20);
    Talk talk;
    talk.stop_at = 4;                                          // once for the prompt, then the third letter
    uint32_t n = 0;
    const int32_t id = 0;
    CHECK(generate(run.session, &id, 1, g, Talk::emit, &talk, &n).code == Code::cancelled);
    CHECK(talk.said == "bcd");
    CHECK(n == 3);
    CHECK(run.session.position == 3);                          // the last letter was shown, not fed
    GenerateOptions more = greedy(3);
    Talk after;
    const int32_t last = 3;
    REQUIRE_OK(generate(run.session, &last, 1, more, Talk::emit, &after));
    CHECK(after.said == "efg");
    REQUIRE_OK(rewind(run.session, 0));
    GenerateOptions fresh = greedy(3);
    Talk anew;
    REQUIRE_OK(generate(run.session, &id, 1, fresh, Talk::emit, &anew));
    CHECK(anew.said == "bcd");
}

TEST_CASE("an observer that stops while generating is passed on, and the session goes on")
{
    const Opened opened(tiny_llama());
    int left = 1000000;
    Options o = plain_options(40);
    o.observer_user = &left;
    o.observer = [](void* user, const Event&) { return --*static_cast<int*>(user) > 0; };
    const auto ids = random_tokens(5, 64);
    Started run(opened.model, o);
    GenerateOptions g = greedy(10);
    g.ignore_stop = true;
    std::vector<int32_t> want(10), got(10);
    g.tokens = want.data();
    REQUIRE_OK(generate(run.session, ids.data(), 5, g, ignore, nullptr));
    for (const int after : {1, 3, 4, 5, 9, 17}) {
        REQUIRE_OK(rewind(run.session, 0));
        left = after;
        GenerateOptions stopped = greedy(10);
        CHECK(generate(run.session, ids.data(), 5, stopped, ignore, nullptr).code == Code::cancelled);
        left = 1000000;
        REQUIRE_OK(rewind(run.session, 0));
        GenerateOptions again = greedy(10);
        again.ignore_stop = true;
        again.tokens = got.data();
        REQUIRE_OK(generate(run.session, ids.data(), 5, again, ignore, nullptr));
        CHECK(got == want);
    }
}

TEST_CASE("the same seed gives the same text, another seed another one")
{
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(5, 64);
    const auto text = [&](uint64_t seed, uint32_t slices, uint32_t batch) {
        Options o = plain_options(60, DType::f16);
        o.slices = slices;
        o.batch = batch;
        Started run(opened.model, o);
        GenerateOptions g;
        g.max_tokens = 40;
        g.ignore_stop = true;
        g.sampler.seed = seed;
        std::vector<int32_t> tokens(40);
        g.tokens = tokens.data();
        REQUIRE_OK(generate(run.session, ids.data(), 5, g, ignore, nullptr));
        return tokens;
    };
    CHECK(text(5, 1, 64) == text(5, 1, 64));
    CHECK(text(5, 1, 64) == text(5, 14, 1));
    CHECK(text(5, 15, 2) == text(5, 14, 3));
    CHECK(text(5, 1, 64) != text(6, 1, 64));
}

TEST_CASE("generation with all logits, and in two turns, gives what one run gives")
{
    const Opened opened(tiny_llama());
    const auto ids = random_tokens(9, 64);
    const auto run = [&](bool all, uint32_t batch) {
        Options o = plain_options(60);
        o.all_logits = all;
        o.batch = batch;
        Started s(opened.model, o);
        GenerateOptions g = greedy(10);
        g.ignore_stop = true;
        std::vector<int32_t> tokens(10);
        g.tokens = tokens.data();
        REQUIRE_OK(generate(s.session, ids.data(), 9, g, ignore, nullptr));
        return tokens;
    };
    const std::vector<int32_t> want = run(false, 64);
    CHECK(run(true, 64) == want);
    CHECK(run(true, 4) == want);
    Started s(opened.model, plain_options(60));
    GenerateOptions g = greedy(4);
    g.ignore_stop = true;
    std::vector<int32_t> first(4), second(6);
    g.tokens = first.data();
    REQUIRE_OK(generate(s.session, ids.data(), 9, g, ignore, nullptr));
    GenerateOptions h = greedy(6);
    h.ignore_stop = true;
    h.tokens = second.data();
    REQUIRE_OK(generate(s.session, &first[3], 1, h, ignore, nullptr));
    first.insert(first.end(), second.begin(), second.end());
    CHECK(first == want);
}

TEST_CASE("models that have nothing to generate with say so")
{
    const int32_t id = 1;
    GenerateOptions g = greedy(3);
    Config c = tiny_config();
    c.flags = 0;
    const Opened encoder(make_model(c, Slots{}, 1));
    Started a(encoder.model, plain_options(8));
    CHECK(generate(a.session, &id, 1, g, ignore, nullptr).code == Code::bad_argument);
    c = tiny_config();
    c.n_outputs = 0;
    const Opened headless(make_model(c, Slots{}, 1));
    Started b(headless.model, plain_options(8));
    CHECK(generate(b.session, &id, 1, g, ignore, nullptr).code == Code::bad_argument);
    c = tiny_config();
    c.flags |= flag_cross;
    const Opened cross(make_model(c, Slots{}, 1));
    Started d(cross.model, plain_options(8));
    CHECK(generate(d.session, &id, 1, g, ignore, nullptr).code == Code::no_memory_rows);
}
