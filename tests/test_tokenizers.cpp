// Tokenizers: the cases of tests/golden/tok-*, which come from Hugging Face tokenizers,
// sentencepiece and tiktoken, read from every file that each of them has; then random bytes,
// damaged files and damaged vocabularies.
#include "doctest.h"
#include "helpers.hpp"

#include <filesystem>
#include <fstream>

namespace {

using namespace transformer;
using test::Random;
using weights::Json;
using weights::VocabularySource;

const char* const golden = "tests/golden";

struct Tokenizer {
    std::vector<unsigned char> bytes;
    Vocabulary v;

    Tokenizer() = default;
    explicit Tokenizer(const VocabularySource& source) : bytes(weights::write_vocabulary(source))
    {
        const Status status = open_vocabulary(bytes.data(), bytes.size(), &v);
        INFO(status.text << ", " << status.field);
        REQUIRE(status);
    }
    std::vector<int32_t> ids(const std::string& text, bool special, bool parse) const
    {
        std::vector<uint32_t> work(static_cast<size_t>(tokenize_size(v, text.size()) / 4 + 1));
        std::vector<int32_t> out(16);
        uint32_t n = 0;
        Status status;
        for (int tries = 0; tries < 2; tries++) {
            status = tokenize(v, text.data(), text.size(), {special, parse, false}, work.data(),
                              tokenize_size(v, text.size()), out.data(),
                              static_cast<uint32_t>(out.size()), &n);
            if (status.code != Code::memory_too_small) break;
            out.resize(static_cast<size_t>(status.where));     // how many there are
        }
        INFO(status.text << ", " << status.field);
        CHECK(status);
        out.resize(n);
        return out;
    }
    std::string text(const std::vector<int32_t>& list, bool special, bool replace_invalid) const
    {
        const auto put = [](void* user, const char* p, uint32_t n) {
            static_cast<std::string*>(user)->append(p, n);
            return true;
        };
        std::string out;
        Decoder d;
        d.special = special;
        d.replace_invalid = replace_invalid;
        for (const int32_t id : list) CHECK(detokenize(v, d, id, put, &out));
        CHECK(detokenize_flush(d, put, &out));
        return out;
    }
};

std::string unhex(const std::string& hex)
{
    std::string out;
    for (size_t i = 0; i + 1 < hex.size(); i += 2)
        out += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    return out;
}
std::vector<int32_t> list_of(const Json* list)
{
    std::vector<int32_t> out;
    if (list)
        for (const Json& item : list->items) out.push_back(static_cast<int32_t>(item.integer));
    return out;
}
std::string field(const Json& j, const char* name)
{
    return j.find(name) ? j.find(name)->string : std::string();
}

struct Case { const char *folder, *file; };
const Case cases[] = {{"tok-gpt2", "tokenizer.json"},
                      {"tok-gpt2", "tokenizer.tiktoken"},
                      {"tok-llama3", "tokenizer.json"},
                      {"tok-llama3", "tokenizer.tiktoken"},
                      {"tok-qwen2", "tokenizer.json"},
                      {"tok-qwen2", "tokenizer.tiktoken"},
                      {"tok-llama2-sp-bpe", "tokenizer.model"},
                      {"tok-llama2-sp-bpe", "tokenizer.json"},
                      {"tok-t5-sp-unigram", "spiece.model"},
                      {"tok-t5-sp-unigram", "tokenizer.json"},
                      {"tok-bert-wordpiece-uncased", "tokenizer.json"},
                      {"tok-bert-wordpiece-uncased", "vocab.txt"}};
std::string path_of(const Case& c)
{
    return weights::join(weights::join(golden, c.folder), c.file);
}

// ---- Reference cases ----------------------------------------------------------------------------

TEST_CASE("tokenizers give the ids and texts of their libraries")
{
    for (const Case& c : cases) {
        CAPTURE(c.folder);
        CAPTURE(c.file);
        const Json e = weights::read_json(
            weights::join(weights::join(golden, c.folder), "expected.json"));
        const bool sentencepiece = field(e, "kind") == "sentencepiece",
                   json = std::string(c.file) == "tokenizer.json", pure = sentencepiece && !json;
        const Tokenizer t(weights::read_tokenizer(path_of(c)));
        CHECK(e.find("cases")->items.size() == 75);
        for (const Json& one : e.find("cases")->items) {
            const std::string text = field(one, "text");
            CAPTURE(text);
            const Json& want = sentencepiece && json && one.find("hf") ? *one.find("hf") : one;
            CHECK(t.ids(text, false, !pure) == list_of(want.find("ids")));
            if (want.find("ids_special"))
                CHECK(t.ids(text, true, true) == list_of(want.find("ids_special")));
            else if (!sentencepiece) CHECK(t.ids(text, true, true) == list_of(want.find("ids")));
            CHECK(t.text(list_of(want.find("ids")), !pure, true) == field(want, "decoded"));
        }
        if (e.find("bytes"))
            for (const Json& one : e.find("bytes")->items) {
                CAPTURE(field(one, "hex"));
                CHECK(t.ids(unhex(field(one, "hex")), false, false) == list_of(one.find("ids")));
                if (pure)
                    CHECK(t.text(list_of(one.find("ids")), false, true) == field(one, "decoded"));
                if (!sentencepiece)
                    CHECK(t.text(list_of(one.find("ids")), true, false) ==
                          unhex(field(one, "hex")));
            }
        for (const Json& one : e.find("decode")->items) {
            const std::vector<int32_t> ids = list_of(one.find("ids"));
            if (one.find("hex")) CHECK(t.text(ids, true, false) == unhex(field(one, "hex")));
            CHECK(t.text(ids, !sentencepiece, true) == field(one, "text"));
        }
        if (const Json* pair = e.find("pair")) {
            const std::string a = field(*pair, "a"), b = field(*pair, "b");
            std::vector<uint32_t> work(
                static_cast<size_t>(tokenize_size(t.v, std::max(a.size(), b.size())) / 4 + 1));
            std::vector<int32_t> ids(200), types(200);
            uint32_t n = 0;
            REQUIRE(tokenize_pair(t.v, a.data(), a.size(), b.data(), b.size(), {}, work.data(),
                                  work.size() * 4, ids.data(), types.data(), 200, &n));
            ids.resize(n);
            types.resize(n);
            CHECK(ids == list_of(pair->find("ids")));
            CHECK(types == list_of(pair->find("token_type_ids")));
        }
    }
}

TEST_CASE("a vocabulary survives being read back, and the work memory is exact")
{
    for (const Case& c : cases) {
        CAPTURE(c.folder);
        CAPTURE(c.file);
        const Tokenizer t(weights::read_tokenizer(path_of(c)));
        CHECK(weights::write_vocabulary(weights::vocabulary_source(t.v)) == t.bytes);
        const std::string text = "Some text, 123 of it.\n";
        std::vector<uint32_t> work(static_cast<size_t>(tokenize_size(t.v, text.size()) / 4 + 1));
        std::vector<int32_t> ids(100);
        uint32_t n = 0;
        const uint64_t size = tokenize_size(t.v, text.size());
        CHECK(tokenize(t.v, text.data(), text.size(), {}, work.data(), size, ids.data(), 100, &n));
        REQUIRE(n > 3);
        if (size)
            CHECK(tokenize(t.v, text.data(), text.size(), {}, work.data(), size - 1, ids.data(),
                           100, &n)
                      .code == Code::memory_too_small);
        const uint32_t count = static_cast<uint32_t>(t.ids(text, true, true).size());
        const Status full = tokenize(t.v, text.data(), text.size(), {}, work.data(), size,
                                     ids.data(), count - 1, &n);
        CHECK(full.code == Code::memory_too_small);
        CHECK(full.where == count);
        uint32_t length = 0;
        for (int32_t id = 0; id < static_cast<int32_t>(t.v.n_tokens); id += 37) {
            const char* const p = token_text(t.v, id, &length);
            if (t.v.types[id] == static_cast<uint8_t>(TokenType::normal) && length)
                CHECK(token_id(t.v, p, length) >= 0);
        }
        CHECK(token_id(t.v, "no such token", 13) == -1);
    }
}

// ---- Parts --------------------------------------------------------------------------------------

std::vector<std::string> cut(const std::string& regex, const std::string& text, uint32_t flags = 0)
{
    VocabularySource v; // every byte is a token, so the words show in the fast path alone
    v.kind = VocabularyKind::wordpiece; // a word that is no token is one [UNK]
    v.tokens = {"?"};
    v.unknown = 0;
    const weights::SplitCompiler c({{weights::parse_regex(regex, "test", true), flags}}, "test");
    v.split = c.split;
    v.classes = c.classes;
    for (size_t from = 0; from < text.size(); from++)
        for (size_t n = 1; n <= text.size() - from; n++) v.tokens.push_back(text.substr(from, n));
    const Tokenizer t(v);
    std::vector<std::string> out;
    for (const int32_t id : t.ids(text, false, false))
        out.push_back(v.tokens[static_cast<size_t>(id)]);
    return out;
}

TEST_CASE("patterns match as a backtracking matcher does")
{
    using Words = std::vector<std::string>;
    CHECK(cut("\\s+(?!\\S)|\\s+|\\S+", "a   b ") == Words{"a", "  ", " ", "b", " "});
    CHECK(cut("ab|a|abc", "abc") == Words{"ab", "c"}); // the first alternative, not the longest
    CHECK(cut("a{2,3}|b", "aaaab") == Words{"aaa", "a", "b"});
    CHECK(cut("a{2}", "aaaaa") == Words{"aa", "aa", "a"});
    CHECK(cut("a+?b?", "aab") == Words{"a", "ab"});
    CHECK(cut("(?i:'s)|x", "'Sx's") == Words{"'S", "x", "'s"});
    CHECK(cut("[^\\W_]+", "a_b") == Words{"a", "_", "b"});
    CHECK(cut("[a-c&&[^b]]+", "abca") == Words{"a", "b", "ca"});
    CHECK(cut("\\s+$", "a \n b ") == Words{"a", " ", "\n b", " "});
    CHECK(cut("[0-9]", "a1b22", 1) == Words{"a", "b"});
    CHECK(cut("[0-9]", "a1b22", 2) == Words{"1", "2", "2"});
    CHECK(cut("(?:a|b)*c", "ababcab") == Words{"ababc", "ab"});
    CHECK(cut(weights::gpt2_pattern, "I'll go  to 12b.") ==
          Words{"I", "'ll", " go", " ", " to", " 12", "b", "."});
    CHECK(cut(weights::o200k_pattern, "HTTPServer's CamelCase") ==
          Words{"HTTPServer's", " Camel", "Case"});
    for (const char* bad : {"\\b", "^a", "(a", "a)", "[a", "(?<=a)b", "a{3,2}", "*a", "\\p{Foo}",
                            "(?!ab)c", "\\1", "[[:alpha:]]", "a{2,9999}", "\\", "(?P<n>a)"}) {
        CAPTURE(bad);
        CHECK_THROWS_AS(weights::parse_regex(bad, "test", true), weights::Error);
    }
}

TEST_CASE("a trie finds what was put in and nothing else")
{
    Random r{7};
    weights::TrieBuilder::Keys keys;
    for (uint32_t i = 0; i < 20000; i++) {
        std::string key;
        for (uint32_t n = r.between(1, 9); n--;)
            key += static_cast<char>(r.chance(3) ? r.below(256) : 'a' + r.below(3));
        keys[key] = r.below(1u << 25);
    }
    VocabularySource v;
    v.kind = VocabularyKind::byte_bpe;
    for (const auto& [key, value] : keys) v.tokens.push_back(key);
    const Tokenizer t(v);
    for (size_t i = 0; i < v.tokens.size(); i++)
        REQUIRE(token_id(t.v, v.tokens[i].data(), static_cast<uint32_t>(v.tokens[i].size())) ==
                static_cast<int32_t>(i));
    for (uint32_t i = 0; i < 20000; i++) {
        std::string key;
        for (uint32_t n = r.between(1, 9); n--;)
            key += static_cast<char>(r.chance(3) ? r.below(256) : 'a' + r.below(3));
        if (!keys.count(key))
            REQUIRE(token_id(t.v, key.data(), static_cast<uint32_t>(key.size())) == -1);
    }
    CHECK(t.v.trie.n < 2 * 20000 * 9);
}

std::filesystem::path scratch()
{
    const auto folder = std::filesystem::temp_directory_path() / "transformer_test_tokenizers";
    std::filesystem::create_directories(folder);
    return folder;
}
void write(const std::filesystem::path& path, const std::string& text)
{
    std::ofstream(path, std::ios::binary) << text;
}

std::string refusal(const std::string& json)
{
    const auto path = scratch() / "tokenizer.json";
    write(path, json);
    try {
        (void)weights::read_tokenizer(path.string());
    } catch (const weights::Error& e) {
        return e.what();
    }
    return "";
}

TEST_CASE("what would change the ids is refused by name")
{
    const auto with = [](const std::string& part) {
        return "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
               "\"merges\": [\"a b\"]}, \"decoder\": {\"type\": \"ByteLevel\"}" +
               part + "}";
    };
    CHECK(refusal(with("")) == "");
    CHECK(refusal(with(", \"normalizer\": {\"type\": \"Nmt\"}")).find("'Nmt'") !=
          std::string::npos);
    CHECK(refusal(with(", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": "
                       "\"x+\"}, \"content\": \"y\"}"))
              .find("'x+'") != std::string::npos);
    CHECK(refusal(with(", \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"))
              .find("'UnicodeScripts'") != std::string::npos);
    CHECK(refusal(with(", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
                       "\"(?<=a)b\"}, \"behavior\": \"Isolated\"}"))
              .find("(?<=a)b") != std::string::npos);
    CHECK(refusal(with(", \"post_processor\": {\"type\": \"Other\"}")).find("'Other'") !=
          std::string::npos);
    CHECK(refusal("{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}}")
              .find("'WordLevel'") != std::string::npos);
    CHECK(refusal("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a b\"]}}")
              .find("merge 0") != std::string::npos);
    CHECK(refusal("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [], "
                  "\"end_of_word_suffix\": \"</w>\"}}")
              .find("</w>") != std::string::npos);
    CHECK(refusal("{}").find("no tokenizer.json") != std::string::npos);
}

TEST_CASE("added tokens take the blanks beside them as they are told to")
{
    const auto path = scratch() / "tokenizer.json";
    write(
        path,
        R"({"model": {"type": "BPE", "vocab": {"a": 0, "Ġ": 1, "Ċ": 2}, "merges": []}, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "added_tokens": [{"id": 3, "content": "[L]", "lstrip": true, "special": true},
            {"id": 4, "content": "[R]", "rstrip": true, "special": true},
        {"id": 5, "content": "[LL]", "special": true}, {"id": 6, "content": "aaa", "special": false}]})");
    const Tokenizer t(weights::read_tokenizer(path.string()));
    using Ids = std::vector<int32_t>;
    CHECK(t.ids("a \n[L] a", false, true) == Ids{0, 3, 1, 0});
    CHECK(t.ids("a [R] \n a", false, true) == Ids{0, 1, 4, 0});
    CHECK(t.ids("[R]  [L]", false, true) == Ids{4, 3});
    CHECK(t.ids("[LL][L", false, true) == Ids{5}); // the rest has no tokens and no unknown one
    CHECK(t.ids("a[L]", false, false) == Ids{0});
    CHECK(t.ids("aaaa", false, false) == Ids{6, 0});           // not special: always found
}

// ---- Hostile bytes ------------------------------------------------------------------------------

std::string random_text(Random& r)
{
    static const char* const bits[] = {" ",
                                       "  ",
                                       "\n",
                                       "<s>",
                                       "</s>",
                                       "[MASK]",
                                       "<|endoftext|>",
                                       "<sep>",
                                       "don't",
                                       "12345",
                                       "\xe2\x96\x81",
                                       "e\xcc\x81",
                                       "\xed\x95\x9c",
                                       "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab",
                                       "\xf0\x9f\x98\x80",
                                       "\xcc\x81\xcc\xa3\xcc\x82",
                                       "\xc3\x85",
                                       "\xe4\xb8\xad",
                                       "\xef\xbf\xbd",
                                       "\xff",
                                       "\xc3",
                                       "\xe2\x82",
                                       "\xf0\x9f",
                                       "ABC",
                                       "www",
                                       "==",
                                       "\t"};
    std::string text;
    for (uint32_t n = r.below(40); n--;) {
        if (r.chance(3)) text += static_cast<char>(r.below(256));
        else text += bits[r.below(static_cast<uint32_t>(std::size(bits)))];
    }
    return text;
}

TEST_CASE("any bytes go through every tokenizer and come back")
{
    for (const Case& c : cases) {
        CAPTURE(c.folder);
        CAPTURE(c.file);
        const Tokenizer t(weights::read_tokenizer(path_of(c)));
        Random r{11};
        for (int k = 0; k < 300; k++) {
            const std::string text = random_text(r);
            const std::vector<int32_t> ids = t.ids(text, r.chance(2), r.chance(2));
            for (const int32_t id : ids)
                REQUIRE((id >= 0 && id < static_cast<int32_t>(t.v.n_tokens)));
            if (t.v.kind == VocabularyKind::byte_bpe && !t.v.n_steps)
                CHECK(t.text(t.ids(text, false, true), true, false) == text);
            std::vector<int32_t> any;
            for (uint32_t n = r.below(30); n--;)
                any.push_back(static_cast<int32_t>(r.below(t.v.n_tokens + 4)) - 2);
            (void)t.text(any, r.chance(2), r.chance(2));
        }
        for (const char* pattern : {" ", "a", "\xcc\x81", "\xcc\x81\xcc\xa3", "\n", "<",
                                    "\xe1\x84\x92", "1"}) { // long runs cost time in proportion
            std::string text;
            while (text.size() < 100000) text += pattern;
            CHECK(t.ids(text, true, true).size() <= 3 * text.size() + 8);
        }
    }
}

TEST_CASE("damaged vocabularies are refused or harmless")
{
    for (const Case& c : cases) {
        CAPTURE(c.folder);
        CAPTURE(c.file);
        const std::vector<unsigned char> good = weights::write_vocabulary(
            weights::read_tokenizer(path_of(c)));
        Random r{13};
        const auto use = [&](const std::vector<unsigned char>& bytes) {
            Vocabulary v;
            if (!open_vocabulary(bytes.data(), bytes.size(), &v)) return;
            for (int k = 0; k < 3; k++) {
                const std::string text = random_text(r);
                std::vector<uint32_t> work(
                    static_cast<size_t>(tokenize_size(v, text.size()) / 4 + 1));
                std::vector<int32_t> ids(200);
                uint32_t n = 0;
                (void)tokenize(v, text.data(), text.size(), {r.chance(2), r.chance(2)}, work.data(),
                               tokenize_size(v, text.size()), ids.data(), 200, &n);
                Decoder d;
                d.special = r.chance(2);
                d.replace_invalid = r.chance(2);
                const auto put = [](void*, const char*, uint32_t) { return true; };
                for (uint32_t i = 0; i < n; i++) (void)detokenize(v, d, ids[i], put, nullptr);
                (void)detokenize_flush(d, put, nullptr);
                (void)token_id(v, text.data(), static_cast<uint32_t>(text.size()));
            }
        };
        for (size_t n = 0; n < good.size(); n += good.size() / 97 + 1)
            use({good.begin(), good.begin() + static_cast<ptrdiff_t>(n)});
        for (int k = 0; k < 400; k++) {
            std::vector<unsigned char> bad = good;
            // Half of the damage goes to the heads of the chunks and to the small ones.
            for (uint32_t n = r.between(1, 8); n--;) {
                const uint32_t at = r.below(static_cast<uint32_t>(bad.size()));
                if (r.chance(2)) bad[at] = static_cast<unsigned char>(r.below(256));
                else
                    weights::store_u32(&bad[std::min<size_t>(at & ~3u, bad.size() - 4)],
                                       r.chance(2) ? r.below(1000)
                                                   : static_cast<uint32_t>(r.bits()));
            }
            use(bad);
        }
    }
}

TEST_CASE("damaged tokenizer files are refused or read")
{
    for (const Case& c : cases) {
        CAPTURE(c.folder);
        CAPTURE(c.file);
        const std::string good = weights::read_text(path_of(c));
        const auto folder = scratch() / "damaged";
        std::filesystem::remove_all(folder);
        std::filesystem::create_directories(folder);
        const auto path = folder / c.file;
        Random r{17};
        for (int k = 0; k < 40; k++) {
            std::string bad = good;
            if (k < 15) bad.resize(good.size() * static_cast<size_t>(k) / 15);
            else
                for (uint32_t n = r.between(1, 6); n--;)
                    bad[r.below(static_cast<uint32_t>(bad.size()))] = static_cast<char>(
                        r.below(256));
            write(path, bad);
            try {
                const std::vector<unsigned char> bytes = weights::write_vocabulary(
                    weights::read_tokenizer(path.string()));
                Vocabulary v;
                (void)open_vocabulary(bytes.data(), bytes.size(), &v);
            } catch (const weights::Error& e) {
                CHECK(std::string(e.what()).size() > 10);
            }
        }
    }
}

}  // namespace
