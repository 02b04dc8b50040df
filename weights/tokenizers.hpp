// weights/tokenizers.hpp - the tokenizers that come with models: tokenizer.json, SentencePiece
// models, tiktoken ranks, vocab.txt
//
// A reader turns each into one VocabularySource. What would change the ids and is not known here is
// refused by its name.
#ifndef TRANSFORMER_WEIGHTS_TOKENIZERS_HPP
#define TRANSFORMER_WEIGHTS_TOKENIZERS_HPP

#include "files.hpp"
#include "json.hpp"
#include "vocabulary.hpp"

#include <cmath>
#include <optional>
#include <sstream>

namespace weights {

constexpr char gpt2_pattern[] = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr char llama3_pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char qwen2_pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char cl100k_pattern[] =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr char o200k_pattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char tekken_pattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char deepseek3_pattern[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char cjk_pattern[] =
    "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+";
constexpr char space_mark[] = "\xe2\x96\x81"; // U+2581

// ---- What readers share -------------------------------------------------------------------------

inline std::string replaced(std::string text, const std::string& from, const std::string& to)
{
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
    return text;
}

inline std::string base64(std::string_view text, const std::string& where)
{
    std::string out;
    uint32_t bits = 0, n = 0;
    for (const char c : text) {
        if (c == '=') break;
        const int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
        if (v < 0) throw Error(where + ": is not base64");
        bits = (bits << 6 | static_cast<uint32_t>(v)) & 0xffffff;
        n += 6;
        if (n >= 8) out += static_cast<char>(bits >> (n -= 8) & 255);
    }
    return out;
}

// The characters that stand for bytes in byte-level BPE, GPT-2's bytes_to_unicode(): code point ->
// byte.
inline const std::map<uint32_t, char>& byte_alphabet()
{
    static const std::map<uint32_t, char> all = [] {
        std::map<uint32_t, char> m;
        uint32_t n = 0;
        for (uint32_t b = 0; b < 256; b++) {
            const bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
            m[own ? b : 256 + n++] = static_cast<char>(static_cast<unsigned char>(b));
        }
        return m;
    }();
    return all;
}
// A token written in those characters, or as it is if it has others.
inline std::string bytes_of(const std::string& text)
{
    std::string out;
    for (size_t at = 0; at < text.size();) {
        const auto found = byte_alphabet().find(next_code(text, &at));
        if (found == byte_alphabet().end()) return text;
        out += found->second;
    }
    return out;
}

// SentencePiece's precompiled rules: the bytes of a darts-clone trie (length first), then strings
// that end in NUL.
inline NormalSteps::Map charsmap(const std::string& bytes, const std::string& where)
{
    const auto* p = reinterpret_cast<const unsigned char*>(bytes.data());
    if (bytes.size() < 4 || load_u32(p) > bytes.size() - 4 || load_u32(p) % 4)
        throw Error(where + ": the precompiled rules of normalisation are cut short");
    const uint32_t n = load_u32(p) / 4;
    const std::string strings = bytes.substr(4 + 4 * size_t{n});
    NormalSteps::Map out;
    uint64_t steps = 0;
    const auto unit = [&](uint32_t i) { return load_u32(p + 4 + 4 * size_t{i}); };
    const auto offset = [](uint32_t u) { return (u >> 10) << ((u & 512) >> 6); };
    const auto walk = [&](const auto& self, uint32_t node, const std::string& key) -> void {
        if (key.size() > 64 || ++steps > 4 * uint64_t{n} + 4)
            throw Error(where + ": the precompiled rules of normalisation are no trie");
        const uint32_t base = node ^ offset(unit(node));
        if (unit(node) >> 8 & 1 && base < n && !key.empty()) {
            // No longer than a rule can be: a hostile file has thousands that share one long text.
            const uint32_t at = unit(base) & 0x7fffffff;
            if (at < strings.size()) out[key] = strings.substr(at, 256).c_str();
        }
        for (uint32_t c = 1; c < 256; c++) {
            const uint32_t next = base ^ c;
            if (next < n && next && (unit(next) & 0x800000ff) == c)
                self(self, next, key + static_cast<char>(static_cast<unsigned char>(c)));
        }
    };
    if (n) walk(walk, 0, "");
    return out;
}

// SentencePiece has an id for every character; a vocabulary that has none would lose text in silence.
inline void require_all_text(const VocabularySource& v, const std::string& where)
{
    if (v.unknown < 0 && !(v.flags & transformer::vocabulary_byte_fallback))
        throw Error(where + ": its vocabulary has neither an unknown token nor tokens for bytes, "
                            "so characters without a token would be lost");
}

// Pieces that were in the same place of the text before blanks became U+2581: '\u2581' in a pattern
// is our blank, a blank nothing.
inline void escape_pattern(Pattern& p)
{
    for (Pattern::State& s : p.states) {
        const bool mark = s.set.has(0x2581);
        s.set.keep(CodeSet().add(' ', ' ').inverted());
        if (mark) s.set.add(' ', ' ');
    }
}

// first .. last pairs as a set
template <size_t N> CodeSet pairs_set(const uint32_t (&pairs)[N])
{
    CodeSet s;
    for (size_t i = 0; i < N; i += 2) s.add(pairs[i], pairs[i + 1]);
    return s;
}
inline CodeSet ascii_punctuation()
{
    return CodeSet().add(33, 47).add(58, 64).add(91, 96).add(123, 126);
}
inline CodeSet old_punctuation() // as Hugging Face's BertPreTokenizer and Punctuation see it:
                                 // Unicode 8
{
    CodeSet s = category("P");
    return s.keep(pairs_set(unicode_after_8).inverted())
        .add(ascii_punctuation())
        .add(0x166d, 0x166d)
        .add(0x111c9, 0x111c9);
}

// Words first << 8 | class for Step::clusters: 1 extends a grapheme cluster, 2 precedes its base, 3
// stands alone.
inline std::string cluster_classes()
{
    CodeSet extends = category("M"), before, alone = category("Cc");
    for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{0x102b, 0x102c},
                                      {0x1038, 0x1038},
                                      {0x1062, 0x1064},
                                      {0x1067, 0x106d},
                                      {0x1083, 0x1083},
                                      {0x1087, 0x108c},
                                      {0x108f, 0x108f},
                                      {0x109a, 0x109c},
                                      {0x1a61, 0x1a61},
                                      {0x1a63, 0x1a64},
                                      {0xaa7b, 0xaa7b},
                                      {0xaa7d, 0xaa7d},
                                      {0x11720, 0x11721}})
        extends.keep(CodeSet().add(first, last).inverted());
    extends.add(0x200c, 0x200d).add(0xff9e, 0xff9f).add(0x1f3fb, 0x1f3ff).add(0xe0020, 0xe007f);
    extends.add(0xe33, 0xe33).add(0xeb3, 0xeb3);
    for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{0x600, 0x605},
                                      {0x6dd, 0x6dd},
                                      {0x70f, 0x70f},
                                      {0x890, 0x891},
                                      {0x8e2, 0x8e2},
                                      {0xd4e, 0xd4e},
                                      {0x110bd, 0x110bd},
                                      {0x110cd, 0x110cd},
                                      {0x111c2, 0x111c3},
                                      {0x1193f, 0x1193f},
                                      {0x11941, 0x11941},
                                      {0x11a3a, 0x11a3a},
                                      {0x11a84, 0x11a89},
                                      {0x11d46, 0x11d46},
                                      {0x11f02, 0x11f02}})
        before.add(first, last);
    alone.add(category("Zl")).add(category("Zp")).add(category("Cf"));
    alone.keep(CodeSet(extends).add(before).inverted());
    std::map<uint32_t, uint32_t> starts{{0, 0}};
    uint32_t which = 0;
    for (const CodeSet* set : {&extends, &before, &alone}) {
        which++;
        for (const auto& [first, last] : set->ranges) {
            starts[first] = which;
            starts.emplace(last + 1, 0);
        }
    }
    Words out;
    for (const auto& [first, kind] : starts) out << (first << 8 | kind);
    return out.bytes;
}

inline void bert_normal(NormalSteps& steps, bool clean, bool strip_accents, bool lower)
{
    NormalSteps::Map m;
    const CodeSet later = pairs_set(unicode_after_8), marks = CodeSet(category("Mn"))
                                                                  .keep(later.inverted())
                                                                  .add(0x1734, 0x1734)
                                                                  .add(0x1171e, 0x1171e);
    CodeSet gone = category("Cc"), blanks = white_space();
    gone.add(category("Cf")).add(0xfffd, 0xfffd).keep(later.inverted());
    blanks.add(9, 10).add(13, 13);
    const auto each = [&](const CodeSet& set, const auto& change) {
        for (const auto& [first, last] : set.ranges)
            for (uint32_t c = first; c <= std::min(last, 0x10ffffu); c++) change(c);
    };
    if (lower)
        for (size_t i = 0; i < std::size(unicode_lower); i += 4)
            for (uint32_t c = unicode_lower[i]; c <= unicode_lower[i + 1];
                 c += unicode_lower[i + 2])
                m[utf8(c)] = lower_case(c);
    if (lower && !strip_accents) m[utf8(0x130)] = lower_case(0x130);
    if (strip_accents) {
        steps.compose(false, false);
        each(marks, [&](uint32_t c) { m[utf8(c)] = ""; });
    }
    if (clean) {
        each(gone, [&](uint32_t c) { if (c != 9 && c != 10 && c != 13) m[utf8(c)] = ""; });
        each(blanks, [&](uint32_t c) {
            if (c == 9 || c == 10 || c == 13 || !gone.has(c)) m[utf8(c)] = " ";
        });
        m.erase(" ");
        // Private use: what is left of a character when its first two bytes are taken away is
        // dropped as no UTF-8.
        const auto lead = [&](uint32_t first, uint32_t from, uint32_t to) {
            for (uint32_t b = from; b <= to; b++)
                m[std::string{static_cast<char>(first), static_cast<char>(b)}] = "";
        };
        lead(0xee, 0x80, 0xbf);
        lead(0xef, 0x80, 0xa3);
        lead(0xf3, 0xb0, 0xbe);
        lead(0xf4, 0x80, 0x8e);
        for (const char* last :
             {"\xf3\xbf", "\xf4\x8f"}) { // but the last two of each plane are no characters
            for (uint32_t b = 0x80; b < 0xbf; b++)
                m[last + std::string(1, static_cast<char>(b))] = "";
            for (uint32_t b = 0x80; b < 0xbe; b++)
                m[last + std::string{'\xbf', static_cast<char>(b)}] = "";
        }
    }
    steps.map(m, clean ? 4 : 0);
}
inline SplitStage bert_stage(bool chinese)
{
    CodeSet alone = old_punctuation();
    if (chinese)
        for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{0x4e00, 0x9fff},
                                          {0x3400, 0x4dbf},
                                          {0x20000, 0x2a6df},
                                          {0x2a700, 0x2b73f},
                                          {0x2b740, 0x2b81f},
                                          {0x2b920, 0x2ceaf},
                                          {0xf900, 0xfaff},
                                          {0x2f800, 0x2fa1f}})
            alone.add(first, last);
    SplitStage stage;
    stage.flags = 2;
    stage.pattern = parse_regex("a|b+", "BERT's pre-tokeniser", false);
    CodeSet inside = alone;
    inside.add(white_space());
    for (Pattern::State& s : stage.pattern.states)
        if (s.kind == Pattern::State::character) s.set = s.set.has('a') ? alone : inside.inverted();
    return stage;
}

// ---- tokenizer.json -----------------------------------------------------------------------------

class TokenizerJson {
public:
    TokenizerJson(const Json& json, const std::string& name) : json_(json), name_(name) {}

    VocabularySource read()
    {
        const Json* model = json_.find("model");
        if (!model || model->kind != Json::object)
            throw Error(name_ + ": has no model, so it is no tokenizer.json");
        const Json* vocab = model->find("vocab");
        std::string kind = text(model->find("type"));
        if (kind.empty() && model->find("merges")) kind = "BPE";
        if (kind.empty() && vocab && vocab->kind == Json::list) kind = "Unigram";
        if (kind.empty() && model->find("max_input_chars_per_word")) kind = "WordPiece";
        if (kind != "BPE" && kind != "Unigram" && kind != "WordPiece") refuse("the model", kind);
        if (!vocab) throw Error(name_ + ": its model has no vocab");
        byte_level_ = kind == "BPE" && (mentions(json_.find("pre_tokenizer"), "ByteLevel") ||
                                        mentions(json_.find("normalizer"), "ByteLevel") ||
                                        (!mentions(json_.find("decoder"), "Metaspace") &&
                                         mentions(json_.find("decoder"), "ByteLevel")));
        v_.kind = byte_level_         ? transformer::VocabularyKind::byte_bpe
                  : kind == "BPE"     ? transformer::VocabularyKind::sentencepiece_bpe
                  : kind == "Unigram" ? transformer::VocabularyKind::unigram
                                      : transformer::VocabularyKind::wordpiece;
        pieces_ = v_.kind == transformer::VocabularyKind::sentencepiece_bpe ||
                  v_.kind == transformer::VocabularyKind::unigram;
        read_tokens(*vocab);
        if (kind == "BPE") read_merges(*model);
        if (kind == "WordPiece") read_wordpiece(*model);
        const Json* unk = model->find(kind == "Unigram" ? "unk_id" : "unk_token");
        if (unk && unk->kind == Json::text) v_.unknown = find(unk->string);
        if (unk && unk->exact && unk->integer >= 0 &&
            unk->integer < static_cast<int64_t>(v_.tokens.size()))
            v_.unknown = static_cast<int32_t>(unk->integer);
        if (kind == "Unigram")
            v_.flags |= transformer::vocabulary_fuse_unknown |
                        transformer::vocabulary_double_scores;
        if (flag(model->find("byte_fallback"))) v_.flags |= transformer::vocabulary_byte_fallback;
        if (pieces_ && !mentions(json_.find("normalizer"), "Precompiled")) steps_.map({}, 2);
        normalizer(json_.find("normalizer"));
        pre_tokenizer(json_.find("pre_tokenizer"), true);
        added_tokens();
        post_processor(json_.find("post_processor"));
        decoder(json_.find("decoder"));
        if (v_.layout.empty()) v_.layout = {layout_a};
        if (v_.pair_layout.empty()) v_.pair_layout = {layout_a, layout_b | 1u << 24};
        v_.growth = std::min(64u, steps_.growth());
        v_.growth_chars = std::min(64u, steps_.growth_chars());
        v_.normal = steps_.bytes;
        if (!stages_.empty()) {
            const SplitCompiler c(stages_, name_);
            v_.split = c.split;
            v_.classes = c.classes;
        }
        finish_types();
        return std::move(v_);
    }

private:
    [[noreturn]] void refuse(const std::string& what, const std::string& which) const
    {
        throw Error(name_ + ": " + what + " '" + printable(which.empty() ? "?" : which) +
                    "' is not supported, and the ids would be wrong without it");
    }
    static std::string text(const Json* j)
    {
        return j && j->kind == Json::text ? j->string : std::string();
    }
    static bool flag(const Json* j, bool otherwise = false)
    {
        return j && j->kind == Json::boolean ? j->flag : otherwise;
    }
    static bool absent(const Json* j) { return !j || j->kind == Json::null; }
    static std::string type(const Json& j) { return text(j.find("type")); }
    static bool mentions(const Json* j, const std::string& name)
    {
        if (absent(j)) return false;
        if (type(*j) == name) return true;
        for (const char* list : {"pretokenizers", "normalizers", "decoders", "processors"})
            if (const Json* parts = j->find(list))
                for (const Json& part : parts->items)
                    if (mentions(&part, name)) return true;
        return false;
    }
    int32_t find(const std::string& token) const
    {
        const auto found = ids_.find(token);
        return found == ids_.end() ? -1 : static_cast<int32_t>(found->second);
    }
    std::string piece(const std::string& s) const
    {
        return pieces_ ? replaced(s, space_mark, " ") : s;
    }

    void put(const std::string& token, int64_t id, bool added)
    {
        if (id < 0 || id >= 1 << 24)
            throw Error(name_ + ": the token " + printable(token) + " has the id " +
                        std::to_string(id));
        const size_t at = static_cast<size_t>(id);
        if (at >= v_.tokens.size()) {
            if (at > 4 * (v_.tokens.size() + 100000))
                throw Error(name_ + ": the token " + printable(token) + " has the id " +
                            std::to_string(id) + ", far beyond the others");
            v_.tokens.resize(at + 1);
            v_.types.resize(at + 1, transformer::TokenType::unused);
            if (v_.kind == transformer::VocabularyKind::unigram) v_.scores.resize(at + 1, 0.0f);
        }
        ids_[token] = static_cast<uint32_t>(at);
        v_.tokens[at] = added ? token : byte_level_ ? bytes_of(token) : piece(token);
        v_.types[at] = pieces_ && !added && token.find(' ') != std::string::npos
                           ? transformer::TokenType::unused
                           : transformer::TokenType::normal;
        uint32_t byte = 0;
        if (pieces_ && !added && token.size() == 6 &&
            std::sscanf(token.c_str(), "<0x%02X>", &byte) == 1 && token[5] == '>')
            bytes_.push_back({static_cast<uint32_t>(at), byte});
    }
    void read_tokens(const Json& vocab)
    {
        if (vocab.kind == Json::object)
            for (const Json::Member& m : vocab.members) {
                if (!m.value.exact)
                    throw Error(name_ + ": the id of the token " + printable(m.key) +
                                " is no whole number");
                if (static_cast<size_t>(m.value.integer) >= v_.tokens.size() &&
                    m.value.integer >= 0 &&
                    m.value.integer < static_cast<int64_t>(vocab.members.size())) {
                    v_.tokens.resize(vocab.members.size());
                    v_.types.resize(vocab.members.size(), transformer::TokenType::unused);
                }
                put(m.key, m.value.integer, false);
            }
        else
            for (size_t i = 0; i < vocab.items.size(); i++) {
                const Json& pair = vocab.items[i];
                if (pair.items.size() != 2 || pair.items[0].kind != Json::text ||
                    pair.items[1].kind != Json::number || !std::isfinite(pair.items[1].value))
                    throw Error(name_ + ": entry " + std::to_string(i) +
                                " of the vocab is no pair of a token and its score");
                put(pair.items[0].string, static_cast<int64_t>(i), false);
                v_.scores[i] = static_cast<float>(pair.items[1].value);
            }
        if (v_.tokens.empty()) throw Error(name_ + ": its vocab is empty");
    }

    void read_merges(const Json& model)
    {
        for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!text(model.find(name)).empty()) refuse(name, text(model.find(name)));
        if (const Json* dropout = model.find("dropout");
            dropout && dropout->kind == Json::number && dropout->value > 0)
            refuse("the model's", "dropout");
        if (flag(model.find("fuse_unk"))) v_.flags |= transformer::vocabulary_fuse_unknown;
        if (flag(model.find("ignore_merges"))) v_.flags |= transformer::vocabulary_ignore_merges;
        const Json* merges = model.find("merges");
        if (!merges || merges->kind != Json::list) throw Error(name_ + ": its model has no merges");
        for (size_t i = 0; i < merges->items.size(); i++) {
            const Json& m = merges->items[i];
            std::string left, right;
            if (m.kind == Json::list && m.items.size() == 2) {
                left = text(&m.items[0]);
                right = text(&m.items[1]);
            } else if (m.kind == Json::text && m.string.find(' ') != std::string::npos) {
                left = m.string.substr(0, m.string.find(' '));
                right = m.string.substr(left.size() + 1);
            }
            const int32_t a = find(left), b = find(right), both = find(left + right);
            if (left.empty() || right.empty() || a < 0 || b < 0 || both < 0)
                throw Error(name_ + ": merge " + std::to_string(i) +
                            " is not one of two tokens that make a third");
            v_.merges.push_back({static_cast<uint32_t>(a), static_cast<uint32_t>(b),
                                 static_cast<uint32_t>(i), static_cast<uint32_t>(both)});
        }
    }
    void read_wordpiece(const Json& model)
    {
        const Json* longest = model.find("max_input_chars_per_word");
        if (longest && longest->exact && longest->integer >= 0 && longest->integer < 1 << 20)
            v_.longest_word = static_cast<uint32_t>(longest->integer);
        const Json* prefix = model.find("continuing_subword_prefix");
        if (!absent(prefix) && text(prefix) != "##")
            refuse("continuing_subword_prefix", text(prefix));
    }

    void normalizer(const Json* j)
    {
        if (absent(j)) return;
        const std::string t = type(*j);
        if (t == "Sequence") {
            if (const Json* parts = j->find("normalizers"))
                for (const Json& part : parts->items) normalizer(&part);
        } else if (t == "NFC" || t == "NFD" || t == "NFKC" || t == "NFKD") {
            steps_.compose(t.find('K') != std::string::npos, t.back() == 'C');
        } else if (t == "Lowercase") {
            NormalSteps::Map m;
            for (size_t i = 0; i < std::size(unicode_lower); i += 4)
                for (uint32_t c = unicode_lower[i]; c <= unicode_lower[i + 1];
                     c += unicode_lower[i + 2])
                    m[utf8(c)] = lower_case(c);
            m[utf8(0x130)] = lower_case(0x130);
            steps_.map(m, 0);
        } else if (t == "StripAccents") {
            NormalSteps::Map m;
            CodeSet marks = category("M");
            marks.keep(pairs_set(unicode_after_9).inverted()).add(0x1cf2, 0x1cf3);
            for (const auto& [first, last] : marks.ranges)
                for (uint32_t c = first; c <= last; c++) m[utf8(c)] = "";
            steps_.map(m, 0);
        } else if (t == "BertNormalizer") {
            const bool lower = flag(j->find("lowercase"), true);
            const Json* strip = j->find("strip_accents");
            chinese_ = flag(j->find("handle_chinese_chars"), true);
            bert_normal(steps_, flag(j->find("clean_text"), true),
                        absent(strip) ? lower : flag(strip), lower);
        } else if (t == "Precompiled") {
            const std::string bytes = base64(text(j->find("precompiled_charsmap")), name_);
            const std::string clusters = cluster_classes();
            if (!bytes.empty()) steps_.map(charsmap(bytes, name_), 2, &clusters);
        } else if (t == "Prepend") {
            const std::string what = piece(text(j->find("prepend")));
            if (!what.empty()) steps_.prefix(what, 0, false);
            strips_ = strips_ || what == " ";
        } else if (t == "Replace") {
            const Json* pattern = j->find("pattern");
            const std::string content = text(j->find("content")),
                              from = pattern ? text(pattern->find("String")) : "",
                              regex = pattern ? text(pattern->find("Regex")) : "";
            if (from == " " && content == space_mark && pieces_) steps_.escape();
            else if (!from.empty()) steps_.map({{from, content}}, 0);
            else if (regex == " {2,}") steps_.collapse(piece(content));
            else refuse("the normalizer Replace of the pattern", regex);
        } else if (t == "Strip") {
            steps_.strip(flag(j->find("strip_left"), true), flag(j->find("strip_right"), true));
        } else if (t != "ByteLevel") {
            refuse("the normalizer", t);
        }
    }

    void stage(const std::string& regex, uint32_t flags)
    {
        stages_.push_back({parse_regex(regex, name_, true), flags});
        if (pieces_) escape_pattern(stages_.back().pattern);
    }
    static std::string quoted(const std::string& s)
    {
        std::string out;
        for (const char c : s) {
            if (std::string("\\^$.|?*+()[]{}&-~").find(c) != std::string::npos) out += '\\';
            out += c;
        }
        return out;
    }
    void split(const Json& j)
    {
        const Json* pattern = j.find("pattern");
        std::string string = pattern ? text(pattern->find("String")) : "";
        const std::string regex = pattern && string.empty() ? text(pattern->find("Regex"))
                                                            : quoted(string),
                          behavior = text(j.find("behavior"));
        if (regex.empty()) refuse("the pre_tokenizer", "Split without a pattern");
        const bool invert = flag(j.find("invert"));
        size_t one = 0;
        if (!string.empty()) next_code(string, &one);
        const std::string inside = "[" + regex + "]", outside = "[^" + regex + "]";
        if (behavior == "Isolated") stage(regex, 0);
        else if (behavior == "Removed") stage(regex, invert ? 2 : 1);
        else if (behavior == "Contiguous") stage("(?:" + regex + ")+", 0);
        else if (!invert && one && one == string.size() && behavior == "MergedWithPrevious")
            stage(outside + "*" + inside + "|" + outside + "+", 0);
        else if (!invert && one && one == string.size() && behavior == "MergedWithNext")
            stage(inside + outside + "*|" + outside + "+", 0);
        else refuse("the pre_tokenizer Split with behavior", behavior);
    }
    void pre_tokenizer(const Json* j, bool first)
    {
        if (absent(j)) return;
        const std::string t = type(*j);
        if (t == "Sequence") {
            const Json* parts = j->find("pretokenizers");
            for (size_t i = 0; parts && i < parts->items.size(); i++) {
                // Each word that WhitespaceSplit leaves gets Metaspace's mark: one step here.
                if (i == 0 && parts->items.size() == 2 &&
                    type(parts->items[0]) == "WhitespaceSplit" &&
                    type(parts->items[1]) == "Metaspace") {
                    words_ = true;
                    continue;
                }
                pre_tokenizer(&parts->items[i], first && (i == 0 || words_));
            }
        } else if (t == "ByteLevel") {
            if (flag(j->find("add_prefix_space"), true)) {
                if (!first)
                    refuse("the pre_tokenizer ByteLevel behind others with", "add_prefix_space");
                steps_.prefix(" ", 1, true);
            }
            if (flag(j->find("use_regex"), true)) stage(gpt2_pattern, 0);
        } else if (t == "Split") {
            split(*j);
        } else if (t == "Digits") {
            stage(flag(j->find("individual_digits")) ? "\\p{N}" : "\\p{N}+", 0);
        } else if (t == "Metaspace") {
            const std::string mark = text(j->find("replacement"));
            if (mark != space_mark || !pieces_) refuse("the pre_tokenizer Metaspace with", mark);
            std::string scheme = text(j->find("prepend_scheme"));
            if (scheme.empty())
                scheme = flag(j->find("add_prefix_space"), true) ? "always" : "never";
            if (!first || (scheme != "always" && scheme != "first" && scheme != "never") ||
                (words_ && scheme == "first"))
                refuse("the pre_tokenizer Metaspace here with prepend_scheme", scheme);
            if (scheme == "never" && !words_) steps_.escape();
            else
                steps_.prefix(scheme == "never" ? "" : " ",
                              1u | (scheme == "first" ? 2u : 0u) | 4u | (words_ ? 8u : 0u), true);
            if (flag(j->find("split"), true))
                stages_.push_back({parse_regex(" [^ ]*|[^ ]+", name_, true), 0});
        } else if (t == "BertPreTokenizer") {
            stages_.push_back(bert_stage(chinese_));
            chinese_ = false;
        } else if (t == "Whitespace") {
            stage("\\w+|[^\\w\\s]+", 2);
        } else if (t == "WhitespaceSplit") {
            stage("\\s+", 1);
        } else if (t == "Punctuation") {
            std::string behavior = text(j->find("behavior"));
            if (behavior.empty()) behavior = "Isolated";
            if (behavior != "Isolated" && behavior != "Contiguous" && behavior != "Removed")
                refuse("the pre_tokenizer Punctuation with behavior", behavior);
            stages_.push_back({parse_regex(behavior == "Contiguous" ? "a+" : "a", name_, true),
                               behavior == "Removed" ? 1u : 0u});
            for (Pattern::State& s : stages_.back().pattern.states)
                if (s.kind == Pattern::State::character) s.set = old_punctuation();
        } else {
            refuse("the pre_tokenizer", t);
        }
    }

    void added_tokens()
    {
        if (chinese_ && v_.kind == transformer::VocabularyKind::wordpiece)
            refuse("BertNormalizer without", "BertPreTokenizer");
        const Json* list = json_.find("added_tokens");
        for (size_t i = 0; list && i < list->items.size(); i++) {
            const Json& j = list->items[i];
            const Json* id = j.find("id");
            AddedToken a;
            const std::string content = text(j.find("content"));
            if (!id || !id->exact || content.empty())
                throw Error(name_ + ": added token " + std::to_string(i) +
                            " has no id or no content");
            put(content, id->integer, true);
            a.id = static_cast<uint32_t>(id->integer);
            a.special = flag(j.find("special"));
            a.strips_left = flag(j.find("lstrip"));
            a.strips_right = flag(j.find("rstrip"));
            a.normalised = flag(j.find("normalized"), !a.special) && !v_normal_empty();
            a.text = a.normalised ? steps_.apply(content) : content;
            if (flag(j.find("single_word"))) refuse("the added token with single_word", content);
            v_.types[a.id] = static_cast<int32_t>(a.id) == v_.unknown
                                 ? transformer::TokenType::unknown
                             : a.special ? transformer::TokenType::control
                                         : transformer::TokenType::user_defined;
            v_.added.push_back(std::move(a));
        }
    }
    bool v_normal_empty() const { return steps_.bytes.empty(); }

    std::vector<uint32_t> special(const std::string& name, const Json* known) const
    {
        std::vector<uint32_t> out;
        const Json* entry = known ? known->find(name) : nullptr;
        const Json* ids = entry ? entry->find("ids") : nullptr;
        for (size_t i = 0; ids && i < ids->items.size(); i++)
            if (ids->items[i].exact && ids->items[i].integer >= 0 &&
                ids->items[i].integer < static_cast<int64_t>(v_.tokens.size()))
                out.push_back(static_cast<uint32_t>(ids->items[i].integer));
        if (out.empty() && find(name) >= 0) out.push_back(static_cast<uint32_t>(find(name)));
        if (out.empty())
            throw Error(name_ + ": the post_processor's token " + printable(name) +
                        " is not in the vocabulary");
        return out;
    }
    void post_processor(const Json* j)
    {
        if (absent(j)) return;
        const std::string t = type(*j);
        if (t == "Sequence") {
            if (const Json* parts = j->find("processors"))
                for (const Json& part : parts->items) post_processor(&part);
        } else if (t == "TemplateProcessing") {
            const auto items = [&](const Json* list, std::vector<uint32_t>& out) {
                out.clear();
                for (size_t i = 0; list && i < list->items.size(); i++) {
                    const Json& item = list->items[i];
                    const Json *token = item.find("SpecialToken"),
                               *sequence = item.find("Sequence"), *one = token ? token : sequence;
                    const Json* type_id = one ? one->find("type_id") : nullptr;
                    const uint32_t segment = type_id && type_id->exact
                                                 ? static_cast<uint32_t>(type_id->integer & 127)
                                                 : 0;
                    if (!one)
                        throw Error(name_ + ": the post_processor's template has an unknown part");
                    if (sequence)
                        out.push_back((text(sequence->find("id")) == "B" ? layout_b : layout_a) |
                                      segment << 24);
                    else
                        for (const uint32_t id :
                             special(text(token->find("id")), j->find("special_tokens")))
                            out.push_back(id | segment << 24);
                }
            };
            items(j->find("single"), v_.layout);
            items(j->find("pair"), v_.pair_layout);
        } else if (t == "BertProcessing" || t == "RobertaProcessing") {
            const auto id = [&](const char* name) {
                const Json* pair = j->find(name);
                if (!pair || pair->items.size() != 2 || pair->items[0].kind != Json::text)
                    throw Error(name_ + ": the post_processor has no " + name);
                return special(pair->items[0].string, nullptr)[0];
            };
            const uint32_t cls = id("cls"), sep = id("sep");
            v_.layout = {cls, layout_a, sep};
            if (t == "BertProcessing")
                v_.pair_layout = {cls, layout_a, sep, layout_b | 1u << 24, sep | 1u << 24};
            else v_.pair_layout = {cls, layout_a, sep, sep, layout_b, sep};
        } else if (t != "ByteLevel") {
            refuse("the post_processor", t);
        }
    }

    void decoder(const Json* j)
    {
        if (absent(j)) return;
        const std::string t = type(*j);
        if (t == "Sequence") {
            if (const Json* parts = j->find("decoders"))
                for (const Json& part : parts->items) decoder(&part);
        } else if (t == "Strip") {
            const Json* start = j->find("start");
            if (start && start->exact && start->integer > 0)
                v_.flags |= transformer::vocabulary_dummy_prefix;
        } else if (t == "Metaspace") {
            const std::string scheme = text(j->find("prepend_scheme"));
            if (scheme.empty() ? flag(j->find("add_prefix_space"), true) : scheme != "never")
                v_.flags |= transformer::vocabulary_dummy_prefix;
        } else if (t == "WordPiece" && flag(j->find("cleanup"), true)) {
            v_.flags |= transformer::vocabulary_cleans_up;
        }
    }

    void finish_types()
    {
        if (v_.flags & transformer::vocabulary_byte_fallback)
            for (const auto& [id, byte] : bytes_) {
                v_.types[id] = transformer::TokenType::byte;
                v_.tokens[id].assign(1, static_cast<char>(static_cast<unsigned char>(byte)));
            }
        if (v_.unknown >= 0 &&
            v_.types[static_cast<size_t>(v_.unknown)] == transformer::TokenType::normal)
            v_.types[static_cast<size_t>(v_.unknown)] = transformer::TokenType::unknown;
    }

    const Json& json_;
    std::string name_;
    VocabularySource v_;
    NormalSteps steps_;
    std::vector<SplitStage> stages_;
    std::unordered_map<std::string, uint32_t> ids_;
    std::vector<std::pair<uint32_t, uint32_t>> bytes_;
    bool byte_level_ = false, pieces_ = false, chinese_ = false, words_ = false, strips_ = false;
};

// ---- SentencePiece ------------------------------------------------------------------------------

// Fields of a protocol buffer, within bounds. `each(number, wire type, value or length, bytes)`.
template <class Each> bool protobuf(const unsigned char* p, uint64_t n, Each each)
{
    const auto varint = [&](uint64_t* at, uint64_t* out) {
        *out = 0;
        for (uint32_t shift = 0; shift < 70 && *at < n; shift += 7) {
            const uint64_t byte = p[(*at)++];
            if (shift < 64) *out |= (byte & 127) << shift;
            if (byte < 128) return true;
        }
        return false;
    };
    for (uint64_t at = 0; at < n;) {
        uint64_t key, value = 0;
        if (!varint(&at, &key) || !(key >> 3) || key >> 32) return false;
        const uint32_t wire = key & 7;
        const unsigned char* bytes = nullptr;
        if (wire == 0) {
            if (!varint(&at, &value)) return false;
        } else if (wire == 1 || wire == 5 || wire == 2) {
            value = wire == 1 ? 8 : 4;
            if (wire == 2 && !varint(&at, &value)) return false;
            if (value > n - at) return false;
            bytes = p + at;
            at += value;
        } else
            return false;
        if (!each(static_cast<uint32_t>(key >> 3), wire, value, bytes)) return false;
    }
    return true;
}

inline bool is_sentencepiece(const MappedFile& file)
{
    // A model begins with its pieces: field 1, a message that begins with the piece's text.
    return file.size > 4 && file.data[0] == 0x0a && file.data[1] >= 2 && file.data[1] < 128 &&
           file.data[2] == 0x0a && file.data[3] < file.data[1];
}

inline VocabularySource read_sentencepiece(const MappedFile& file, const std::string& path)
{
    using transformer::TokenType;
    VocabularySource v;
    uint64_t model_type = 1;
    bool prefix = true, collapse = true, escape = true, suffix = false, fallback = false,
         good = true;
    std::string rules, unk_surface = " \xe2\x81\x87 ", names[4] = {"<unk>", "<s>", "</s>", "<pad>"};
    std::vector<std::string> pieces;
    const auto string = [](const unsigned char* b, uint64_t n) {
        return std::string(reinterpret_cast<const char*>(b), static_cast<size_t>(n));
    };
    good = protobuf(
        file.data, file.size,
        [&](uint32_t field, uint32_t wire, uint64_t n, const unsigned char* b) {
            if (wire != 2) return true;
            if (field == 1) {
                std::string piece;
                float score = 0;
                uint64_t type = 1;
                const bool whole = protobuf(
                    b, n, [&](uint32_t f, uint32_t w, uint64_t m, const unsigned char* c) {
                        if (f == 1 && w == 2) piece = string(c, m);
                        if (f == 2 && w == 5) score = load_f32(c);
                        if (f == 3 && w == 0) type = m;
                        return true;
                    });
                static const TokenType types[] = {TokenType::unused,       TokenType::normal,
                                                  TokenType::unknown,      TokenType::control,
                                                  TokenType::user_defined, TokenType::unused,
                                                  TokenType::byte};
                if (type < 1 || type > 6)
                    throw Error(path + ": piece " + std::to_string(pieces.size()) +
                                " is of the unknown type " + std::to_string(type));
                if (pieces.size() >= 1u << 24) throw Error(path + ": has more than 2^24 pieces");
                pieces.push_back(piece);
                v.scores.push_back(score);
                v.types.push_back(types[type]);
                return whole;
            }
            if (field == 2)
                return protobuf(b, n,
                                [&](uint32_t f, uint32_t w, uint64_t m, const unsigned char* c) {
                                    if (f == 3 && w == 0) model_type = m;
                                    if (f == 24 && w == 0) suffix = m != 0;
                                    if (f == 35 && w == 0) fallback = m != 0;
                                    if (f == 44 && w == 2) unk_surface = string(c, m);
                                    if (f >= 45 && f <= 48 && w == 2) names[f - 45] = string(c, m);
                                    return true;
                                });
            if (field == 3)
                return protobuf(b, n,
                                [&](uint32_t f, uint32_t w, uint64_t m, const unsigned char* c) {
                                    if (f == 2 && w == 2) rules = string(c, m);
                                    if (f == 3 && w == 0) prefix = m != 0;
                                    if (f == 4 && w == 0) collapse = m != 0;
                                    if (f == 5 && w == 0) escape = m != 0;
                                    return true;
                                });
            return true;
        });
    if (!good || pieces.empty()) throw Error(path + ": is no SentencePiece model, or is cut short");
    if (model_type != 1 && model_type != 2)
        throw Error(path + ": is a SentencePiece model of the kind " +
                    (model_type == 3   ? "word"
                     : model_type == 4 ? "char"
                                       : "?") +
                    "; unigram and bpe are supported");
    if (!escape)
        throw Error(path + ": a SentencePiece model with escape_whitespaces off is not supported");
    v.kind = model_type == 2 ? transformer::VocabularyKind::sentencepiece_bpe
                             : transformer::VocabularyKind::unigram;
    v.flags = transformer::vocabulary_fuse_unknown;
    if (prefix) v.flags |= transformer::vocabulary_dummy_prefix;
    if (collapse) v.flags |= transformer::vocabulary_collapse_spaces;
    if (fallback) v.flags |= transformer::vocabulary_byte_fallback;
    for (size_t i = 0; i < pieces.size(); i++) {
        uint32_t byte = 0;
        const int32_t id = static_cast<int32_t>(i);
        std::string text = replaced(pieces[i], space_mark, " ");
        AddedToken a;
        a.text = v.types[i] == TokenType::user_defined ? text : pieces[i];
        a.id = static_cast<uint32_t>(i);
        a.special = v.types[i] != TokenType::user_defined;
        a.symbol = !a.special;
        if (v.types[i] == TokenType::byte) {
            if (pieces[i].size() != 6 || std::sscanf(pieces[i].c_str(), "<0x%02X>", &byte) != 1)
                throw Error(path + ": the byte piece " + printable(pieces[i]) + " has no byte");
            text.assign(1, static_cast<char>(static_cast<unsigned char>(byte)));
        } else if (v.types[i] == TokenType::unknown) {
            v.unknown = id;
            text = unk_surface;
        } else if (v.types[i] == TokenType::control) {
            if (pieces[i] == names[1]) v.bos = id;
            if (pieces[i] == names[2]) v.eos = id;
            if (pieces[i] == names[3]) v.pad = id;
        }
        if (v.types[i] == TokenType::control || v.types[i] == TokenType::unknown ||
            v.types[i] == TokenType::user_defined)
            v.added.push_back(a);
        v.tokens.push_back(std::move(text));
    }
    require_all_text(v, path);
    NormalSteps steps;
    steps.map(rules.empty() ? NormalSteps::Map() : charsmap(rules, path), 1 | 2);
    steps.spaces((prefix ? 1u : 0u) | (collapse ? 2u : 0u) | (suffix ? 4u : 0u));
    v.normal = steps.bytes;
    v.growth = std::min(64u, steps.growth());
    v.growth_chars = std::min(64u, steps.growth_chars());
    if (v.bos >= 0)
        v.flags |= transformer::vocabulary_add_bos; // the habit of the models that come so: Llama's
                                                    // begins with
    else if (v.eos >= 0) v.flags |= transformer::vocabulary_add_eos; // <s>, T5's ends with </s>
    if (v.eos >= 0) v.stop.push_back(v.eos);
    return v;
}

// ---- Ranks of tiktoken --------------------------------------------------------------------------

// Tokens in the order of their ranks become merges: every way to cut a token into two tokens is a
// merge of that token's rank.
inline void merges_from_ranks(VocabularySource& v, size_t n)
{
    std::unordered_map<std::string_view, uint32_t> ids;
    for (size_t i = 0; i < n; i++) ids.emplace(v.tokens[i], static_cast<uint32_t>(i));
    for (size_t i = 0; i < n; i++) {
        const std::string_view t = v.tokens[i];
        if (t.size() > TrieBuilder::longest_key) continue;
        for (size_t cut = 1; cut < t.size(); cut++) {
            const auto left = ids.find(t.substr(0, cut));
            if (left == ids.end()) continue;
            const auto right = ids.find(t.substr(cut));
            if (right != ids.end())
                v.merges.push_back({left->second, right->second, static_cast<uint32_t>(i),
                                    static_cast<uint32_t>(i)});
        }
    }
}
inline void byte_level(VocabularySource& v,
                       const std::vector<std::pair<std::string, uint32_t>>& stages,
                       const std::string& where, bool line_ends)
{
    std::vector<SplitStage> list;
    for (const auto& [regex, flags] : stages)
        list.push_back({parse_regex(regex, where, line_ends), flags});
    const SplitCompiler c(list, where);
    v.split = c.split;
    v.classes = c.classes;
}

inline bool is_tiktoken(const MappedFile& file)
{
    // "IQ== 0": base64, a blank, a number, the end of the line
    uint64_t i = 0;
    const auto at = [&](uint64_t k) {
        return k < file.size ? static_cast<char>(file.data[k]) : '\0';
    };
    while (i < 4000 && (std::isalnum(static_cast<unsigned char>(at(i))) || at(i) == '+' ||
                        at(i) == '/' || at(i) == '='))
        i++;
    if (i < 4 || i % 4 || at(i) != ' ') return false;
    const uint64_t from = ++i;
    while (at(i) >= '0' && at(i) <= '9') i++;
    return i > from && (at(i) == '\n' || at(i) == '\r' || i == file.size);
}

inline VocabularySource read_tokenizer_json(const std::string& path);

inline VocabularySource read_tiktoken(const MappedFile& file, const std::string& path)
{
    VocabularySource v;
    v.kind = transformer::VocabularyKind::byte_bpe;
    v.flags = transformer::vocabulary_ignore_merges;
    std::istringstream lines(
        std::string(reinterpret_cast<const char*>(file.data), static_cast<size_t>(file.size)));
    std::string line;
    std::map<uint32_t, std::string> ranks;
    for (size_t n = 1; std::getline(lines, line); n++) {
        if (!line.empty() && line.back() == '\r') line.pop_back();
        if (line.empty()) continue;
        const std::string where = path + ": line " + std::to_string(n);
        const size_t blank = line.find(' ');
        char* end = nullptr;
        const unsigned long rank = blank == std::string::npos
                                       ? 0
                                       : std::strtoul(line.c_str() + blank + 1, &end, 10);
        if (blank == std::string::npos || !end || *end || end == line.c_str() + blank + 1 ||
            rank >= 1ul << 24)
            throw Error(where + " is no token and its rank");
        if (!ranks
                 .emplace(static_cast<uint32_t>(rank),
                          base64(std::string_view(line).substr(0, blank), where))
                 .second)
            throw Error(where + " has a rank that another line has");
    }
    if (ranks.empty()) throw Error(path + ": holds no tokens");
    const size_t n = ranks.rbegin()->first + size_t{1};
    if (n > 2 * ranks.size() + 1000) throw Error(path + ": its ranks leave gaps");
    v.tokens.resize(n);
    v.types.assign(n, transformer::TokenType::unused);
    for (const auto& [rank, token] : ranks) {
        v.tokens[rank] = token;
        v.types[rank] = transformer::TokenType::normal;
    }
    merges_from_ranks(v, n);
    const auto special = [&](const std::string& text, size_t id) {
        if (id >= v.tokens.size()) {
            v.tokens.resize(id + 1);
            v.types.resize(id + 1, transformer::TokenType::unused);
        }
        v.tokens[id] = text;
        v.types[id] = transformer::TokenType::control;
        AddedToken a;
        a.text = text;
        a.id = static_cast<uint32_t>(id);
        a.special = true;
        v.added.push_back(a);
    };
    const std::string beside = join(folder_of(path), "tokenizer.json");
    if (is_file(beside)) { // says how text is cut, and what is special
        const VocabularySource j = read_tokenizer_json(beside);
        if (j.kind == transformer::VocabularyKind::byte_bpe) {
            v.split = j.split, v.classes = j.classes, v.normal = j.normal, v.growth = j.growth,
            v.growth_chars = j.growth_chars;
            v.layout = j.layout, v.pair_layout = j.pair_layout;
            for (const AddedToken& a : j.added) {
                special(a.text, a.id);
                v.added.back() = a;
            }
            return v;
        }
    }
    const size_t count = ranks.size();
    std::string pattern = llama3_pattern;
    if (count == 50256 || count == 50257) pattern = gpt2_pattern;
    if (count == 100256) pattern = cl100k_pattern;
    if (count == 199998 || count == 200000) pattern = o200k_pattern;
    if (count == 151643) pattern = qwen2_pattern;
    byte_level(v, {{pattern, 0}}, path, false);
    if (count == 50256 || count == 100256 || count == 199998)
        special("<|endoftext|>", count == 50256 ? 50256 : count + 1);
    if (count == 100256) {
        special("<|fim_prefix|>", 100258), special("<|fim_middle|>", 100259),
            special("<|fim_suffix|>", 100260), special("<|endofprompt|>", 100276);
    } else if (count == 199998) {
        special("<|endofprompt|>", 200018);
    } else if (count == 151643) {
        special("<|endoftext|>", 151643), special("<|im_start|>", 151644),
            special("<|im_end|>", 151645);
    } else if (count == 128000) {                              // Llama 3
        static const char* const names[] = {"begin_of_text",
                                            "end_of_text",
                                            "reserved_special_token_0",
                                            "reserved_special_token_1",
                                            "finetune_right_pad_id",
                                            "step_id",
                                            "start_header_id",
                                            "end_header_id",
                                            "eom_id",
                                            "eot_id",
                                            "python_tag"};
        for (uint32_t i = 0; i < 256; i++) {
            const std::string name = i < 11     ? names[i]
                                     : i == 255 ? "image"
                                                : "reserved_special_token_" + std::to_string(i - 9);
            if (i == 255) special("<|reserved_special_token_246|>", 128255);
            else special("<|" + name + "|>", 128000 + i);
        }
        v.bos = 128000, v.eos = 128001, v.stop = {128001, 128008, 128009};
        v.flags |= transformer::vocabulary_add_bos;
    }
    if (v.eos < 0 && !v.added.empty() && v.added[0].text == "<|endoftext|>")
        v.eos = static_cast<int32_t>(v.added[0].id), v.stop = {v.eos};
    return v;
}

// ---- vocab.txt ----------------------------------------------------------------------------------

struct BertOptions { bool lower = true, chinese = true; std::optional<bool> strip_accents; };

inline VocabularySource wordpiece_vocabulary(std::vector<std::string> tokens, const BertOptions& o,
                                             const std::string& where)
{
    VocabularySource v;
    v.kind = transformer::VocabularyKind::wordpiece;
    v.flags = transformer::vocabulary_cleans_up;
    v.tokens = std::move(tokens);
    v.types.assign(v.tokens.size(), transformer::TokenType::normal);
    const std::pair<const char*, int32_t*> names[] = {{"[PAD]", &v.pad},
                                                      {"[UNK]", &v.unknown},
                                                      {"[CLS]", &v.classify},
                                                      {"[SEP]", &v.separator},
                                                      {"[MASK]", &v.mask}};
    for (size_t i = 0; i < v.tokens.size(); i++)
        for (const auto& [name, id] : names) {
            if (v.tokens[i] != name || *id >= 0) continue;
            *id = static_cast<int32_t>(i);
            AddedToken a;
            a.text = name;
            a.id = static_cast<uint32_t>(i);
            a.special = true;
            v.added.push_back(a);
            v.types[i] = id == &v.unknown ? transformer::TokenType::unknown
                                          : transformer::TokenType::control;
        }
    if (v.unknown < 0) throw Error(where + ": has no [UNK], so it is no WordPiece vocabulary");
    NormalSteps steps;
    bert_normal(steps, true, o.strip_accents.value_or(o.lower), o.lower);
    v.normal = steps.bytes;
    v.growth = std::min(64u, steps.growth()), v.growth_chars = std::min(64u, steps.growth_chars());
    const SplitCompiler c({bert_stage(o.chinese)}, where);
    v.split = c.split, v.classes = c.classes;
    if (v.classify >= 0 && v.separator >= 0) {
        const uint32_t cls = static_cast<uint32_t>(v.classify),
                       sep = static_cast<uint32_t>(v.separator);
        v.layout = {cls, layout_a, sep};
        v.pair_layout = {cls, layout_a, sep, layout_b | 1u << 24, sep | 1u << 24};
    }
    return v;
}

inline VocabularySource read_vocab_txt(const MappedFile& file, const std::string& path,
                                       BertOptions o, bool told)
{
    std::istringstream lines(
        std::string(reinterpret_cast<const char*>(file.data), static_cast<size_t>(file.size)));
    std::string line;
    std::vector<std::string> tokens;
    while (std::getline(lines, line)) {
        if (!line.empty() && line.back() == '\r') line.pop_back();
        tokens.push_back(line);
        if (tokens.size() > 1u << 24) throw Error(path + ": has more than 2^24 lines");
    }
    if (!told) { // a vocabulary with capitals was made of text with capitals
        o.lower = true;
        for (const std::string& t : tokens)
            if (t.size() > 1 && t[0] != '[' && t[0] >= 'A' && t[0] <= 'Z') o.lower = false;
    }
    return wordpiece_vocabulary(std::move(tokens), o, path);
}

// ---- What stands beside a tokenizer -------------------------------------------------------------

inline VocabularySource read_tokenizer_json(const std::string& path)
{
    const std::string text = read_text(path, uint64_t{1} << 28);
    const Json json = parse_json(text, path, 30000000);
    return TokenizerJson(json, path).read();
}

inline Json beside(const std::string& folder, const char* name)
{
    const std::string path = join(folder, name);
    return is_file(path) ? read_json(path) : Json();
}
// A token as these files write it: text, or an object with its content.
inline std::string token_name(const Json* j)
{
    if (j && j->kind == Json::object) j = j->find("content");
    return j && j->kind == Json::text ? j->string : std::string();
}

inline void read_beside(VocabularySource& v, const std::string& folder, bool own_layout)
{
    const Json config = beside(folder, "tokenizer_config.json"),
               map = beside(folder, "special_tokens_map.json"),
               generation = beside(folder, "generation_config.json");
    std::unordered_map<std::string_view, int32_t> ids;
    if (const Json* more = config.find("added_tokens_decoder");
        more && v.kind != transformer::VocabularyKind::none)
        for (const Json::Member& m :
             more->members) { // tokens that stand nowhere else (SentencePiece with extra ones)
            const int64_t id = m.key.size() < 9 ? std::strtoll(m.key.c_str(), nullptr, 10) : -1;
            const std::string content = token_name(&m.value);
            if (id < static_cast<int64_t>(v.tokens.size()) ||
                id > static_cast<int64_t>(v.tokens.size()) + 100000 || content.empty())
                continue;
            const Json* special = m.value.find("special");
            AddedToken a;
            a.text = content;
            a.id = static_cast<uint32_t>(id);
            a.special = special && special->flag;
            v.tokens.resize(static_cast<size_t>(id) + 1);
            v.types.resize(v.tokens.size(), transformer::TokenType::unused);
            if (!v.scores.empty()) v.scores.resize(v.tokens.size(), 0.0f);
            v.tokens.back() = content;
            v.types.back() = a.special ? transformer::TokenType::control
                                       : transformer::TokenType::user_defined;
            v.added.push_back(a);
        }
    for (const AddedToken& a : v.added) ids.emplace(a.text, static_cast<int32_t>(a.id));
    for (size_t i = v.tokens.size(); i--;)
        if (v.types.empty() || v.types[i] != transformer::TokenType::byte)
            ids.emplace(v.tokens[i], static_cast<int32_t>(i));
    const std::pair<const char*, int32_t*> names[] = {
        {"bos_token", &v.bos},  {"eos_token", &v.eos},       {"unk_token", &v.unknown},
        {"pad_token", &v.pad},  {"sep_token", &v.separator}, {"cls_token", &v.classify},
        {"mask_token", &v.mask}};
    for (const auto& [name, id] : names)
        for (const Json* j : {map.find(name), config.find(name)}) {
            if (id == &v.unknown && *id >= 0)
                continue; // the model's own counts, and none is none for byte-level BPE
            if (id == &v.unknown && v.kind == transformer::VocabularyKind::byte_bpe) continue;
            const auto found = ids.find(token_name(j));
            if (found != ids.end()) *id = found->second;
        }
    const auto stop = [&](int64_t id) {
        if (id >= 0 && id < static_cast<int64_t>(v.tokens.size()) &&
            std::find(v.stop.begin(), v.stop.end(), id) == v.stop.end())
            v.stop.push_back(static_cast<int32_t>(id));
    };
    if (v.eos >= 0) stop(v.eos);
    if (const Json* eos = generation.find("eos_token_id")) {
        if (eos->exact) stop(eos->integer);
        for (const Json& one : eos->items)
            if (one.exact) stop(one.integer);
    }
    const auto set = [&](const char* name, uint32_t bit) {
        const Json* j = config.find(name);
        if (j && j->kind == Json::boolean) v.flags = j->flag ? v.flags | bit : v.flags & ~bit;
    };
    if (!own_layout) {
        set("add_bos_token", transformer::vocabulary_add_bos);
        set("add_eos_token", transformer::vocabulary_add_eos);
    } else {
        const auto is = [&](uint32_t item, int32_t id) {
            return id >= 0 && (item & 0xffffff) == static_cast<uint32_t>(id);
        };
        if (!v.layout.empty() && is(v.layout.front(), v.bos))
            v.flags |= transformer::vocabulary_add_bos;
        if (!v.layout.empty() && is(v.layout.back(), v.eos))
            v.flags |= transformer::vocabulary_add_eos;
    }
    if (const Json* chat = config.find("chat_template")) {
        if (chat->kind == Json::text) v.chat_template = chat->string;
        for (const Json& one : chat->items) // several: the one of the name "default"
            if (token_name(one.find("name")) == "default" || v.chat_template.empty())
                v.chat_template = token_name(one.find("template"));
    }
    const std::string own = join(folder, "chat_template.jinja"); // counts more, as in transformers
    if (is_file(own)) v.chat_template = read_text(own, 1 << 20);
}

// The tokenizer in a folder, if there is one.
inline bool find_tokenizer(const std::string& folder, std::string& path)
{
    for (const char* name :
         {"tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model",
          "spm.model", "tokenizer.tiktoken", "qwen.tiktoken", "vocab.txt"})
        if (is_file(join(folder, name))) {
            path = join(folder, name);
            return true;
        }
    return false;
}

inline uint64_t count_llama2c_tokens(const MappedFile& file);
inline VocabularySource read_llama2c_tokenizer(const MappedFile& file, const std::string& path,
                                               uint32_t n_tokens);

// Any tokenizer: a file (what it is, is read from its bytes), or a folder with one.
inline VocabularySource read_tokenizer(const std::string& given)
{
    std::string path = given;
    if (is_directory(given) && !find_tokenizer(given, path))
        throw Error(
            given +
            ": has no tokenizer.json, tokenizer.model, spiece.model, *.tiktoken or vocab.txt");
    const std::string folder = folder_of(path);
    const File file = map_file(path);
    uint64_t i = 0;
    while (i < file->size && (file->data[i] <= 32 || file->data[i] >= 0xef)) i++;
    VocabularySource v;
    bool own_layout = true;
    if (i < file->size && file->data[i] == '{') v = read_tokenizer_json(path);
    else if (is_sentencepiece(*file)) {
        v = read_sentencepiece(*file, path);
        own_layout = false;
    } else if (is_tiktoken(*file)) {
        v = read_tiktoken(*file, path);
    } else if (count_llama2c_tokens(*file)) {
        return read_llama2c_tokenizer(*file, path, 0);
    } else {
        for (uint64_t k = 0; k < std::min<uint64_t>(file->size, 4096); k++)
            if (!file->data[k]) throw Error(path + ": is no tokenizer that is known here");
        const Json config = beside(folder, "tokenizer_config.json");
        const auto flag = [&](const char* name, bool otherwise) {
            const Json* j = config.find(name);
            return j && j->kind == Json::boolean ? j->flag : otherwise;
        };
        BertOptions o;
        o.lower = flag("do_lower_case", true);
        o.chinese = flag("tokenize_chinese_chars", true);
        if (const Json* strip = config.find("strip_accents"); strip && strip->kind == Json::boolean)
            o.strip_accents = strip->flag;
        v = read_vocab_txt(*file, path, o, config.find("do_lower_case") != nullptr);
    }
    read_beside(v, folder, own_layout);
    return v;
}

// Is this path a tokenizer alone (and not a model)? The bytes decide; for a folder, whether it has
// a tokenizer and no weights.
inline bool is_tokenizer(const std::string& path)
{
    std::string inside;
    if (is_directory(path)) {
        std::error_code error;
        for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
            const std::string name = entry.path().filename().string();
            if (name == "config.json" || entry.path().extension() == ".safetensors" ||
                entry.path().extension() == ".gguf")
                return false;
        }
        return find_tokenizer(path, inside);
    }
    if (!is_file(path)) return false;
    const File file = map_file(path);
    if (is_sentencepiece(*file) || is_tiktoken(*file)) return true;
    if (file->size > 8 && load_u32(file->data + 4) == 0 && count_llama2c_tokens(*file)) return true;
    const std::string_view head(
        reinterpret_cast<const char*>(file->data),
        static_cast<size_t>(std::min<uint64_t>(file->size, uint64_t{1} << 28)));
    const size_t first = head.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    if (first != std::string_view::npos && head[first] == '{')
        return head.find("\"model\"") != std::string_view::npos &&
               head.find("\"vocab\"") != std::string_view::npos;
    return head.find('\0') == std::string_view::npos &&
           (head.substr(0, 6) == "[UNK]\n" || head.find("\n[UNK]\n") != std::string_view::npos ||
            head.find("\n[UNK]\r\n") != std::string_view::npos);
}

// Puts a tokenizer into what the model's own configuration says: its special ids and stop ids stay
// where the tokenizer has none.
inline void join_tokenizer(VocabularySource& model, VocabularySource tokenizer)
{
    const std::pair<int32_t*, int32_t> ids[] = {
        {&tokenizer.bos, model.bos},           {&tokenizer.eos, model.eos},
        {&tokenizer.pad, model.pad},           {&tokenizer.separator, model.separator},
        {&tokenizer.classify, model.classify}, {&tokenizer.mask, model.mask}};
    const int32_t n = static_cast<int32_t>(tokenizer.tokens.size());
    for (const auto& [id, own] : ids)
        if (*id < 0 && own < n) *id = own;
    for (const int32_t id : model.stop)
        if (id >= 0 && id < n &&
            std::find(tokenizer.stop.begin(), tokenizer.stop.end(), id) == tokenizer.stop.end())
            tokenizer.stop.push_back(id);
    tokenizer.labels = model.labels;
    model = std::move(tokenizer);
}
// The tokenizer of a model in a folder: the file given, or what stands there; without one the model
// runs on ids alone.
inline void join_tokenizer(VocabularySource& model, const std::string& folder,
                           const std::string& given)
{
    std::string path = given;
    if (!path.empty() || find_tokenizer(folder, path)) join_tokenizer(model, read_tokenizer(path));
}

// ---- Vocabularies out of other files (GGUF) -----------------------------------------------------

// What a file says about its vocabulary; empty or -1: it says nothing. Keys of GGUF are named.
struct VocabularyParts {
    std::string model; // tokenizer.ggml.model: llama, gpt2, bert, t5
    std::string pre;                                           // tokenizer.ggml.pre
    std::vector<std::string> tokens, merges; // tokenizer.ggml.tokens, .merges ("left right")
    std::vector<float> scores;                                 // tokenizer.ggml.scores
    std::vector<int32_t> types; // tokenizer.ggml.token_type: SentencePiece's numbers
    std::string charsmap,
        chat_template; // tokenizer.ggml.precompiled_charsmap (bytes), tokenizer.chat_template
    int32_t bos = -1, eos = -1, eot = -1, unknown = -1, separator = -1, pad = -1, classify = -1,
            mask = -1;
    int add_bos = -1, add_eos = -1, add_space_prefix = -1,
        remove_extra_whitespaces = -1;                         // 0, 1, or -1: not said
    std::string name = "the vocabulary";                       // for messages
};

struct PreTokenizer {
    std::vector<std::pair<std::string, uint32_t>> stages;
    bool ignore_merges = false, nfc = false;
};

// llama.cpp's names (llama-vocab.cpp) as patterns.
inline PreTokenizer pre_tokenizer_named(const std::string& name, const std::string& where)
{
    const auto is = [&](std::string_view names) {
        const std::string list = " " + std::string(names) + " ";
        return list.find(" " + name + " ") != std::string::npos;
    };
    PreTokenizer p;
    const std::string digits1 = "\\p{N}", digits3 = "\\p{N}{1,3}";
    const std::string
        gpt2 = gpt2_pattern,
        sentences =
            " ?[^(\\s|.,!?"
            "\xe2\x80\xa6\xe3\x80\x82\xef\xbc\x8c\xe3\x80\x81\xe0\xa5\xa4\xdb\x94\xd8\x8c)]+";
    const std::string han = "[\xe4\xb8\x80-\xe9\xbe\xa5\xe0\xa0\x80-\xe4\xb8\x80\xea\xb0\x80-"
                            "\xed\x9f\xbf]+"; // as
                                              // DeepSeek
                                              // writes
                                              // it
    if (is("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx smaug-bpe "
           "chatglm-bpe glm4"))
        p.stages = {{llama3_pattern, 0}};
    else if (is("qwen2 deepseek-r1-qwen kormo stablelm2 hunyuan megrez grok-2 solar-open"))
        p.stages = {{qwen2_pattern, 0}};
    else if (is("gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum "
                "modern-bert mpt olmo jais trillion "
                "granite-docling roberta-bpe jina-v1-en jina-v2-code exaone4"))
        p.stages = {{gpt2, 0}};
    else if (is("starcoder refact command-r smollm codeshell exaone minerva-7b"))
        p.stages = {{digits1, 0}, {gpt2, 0}};
    else if (is("falcon"))
        p.stages = {{"[\\p{P}$+<=>^~|`]+", 0}, {gpt2, 0}, {"[0-9][0-9][0-9]", 0}};
    else if (is("default"))
        p.stages = {{"[\\p{P}$+<=>^~|]+", 0}, {gpt2, 0}, {"\\p{N}+", 0}, {"[0-9][0-9][0-9]", 0}};
    else if (is("gpt-4o llama4 minimax-m2")) p.stages = {{o200k_pattern, 0}};
    else if (is("tekken")) p.stages = {{tekken_pattern, 0}};
    else if (is("deepseek-v3 hunyuan-dense"))
        p.stages = {{digits3, 0}, {cjk_pattern, 0}, {deepseek3_pattern, 0}};
    else if (is("hyperclovax mu-choco"))
        p.stages = {{digits1, 0}, {cjk_pattern, 0}, {deepseek3_pattern, 0}};
    else if (is("deepseek-coder"))
        p.stages = {{"[\r\n]", 0}, {"\\s?\\p{L}+", 0}, {"\\s?\\p{P}+", 0}, {han, 0}, {digits1, 0}};
    else if (is("bloom poro-chat gpt3-finnish")) p.stages = {{sentences, 0}};
    else if (is("viking")) p.stages = {{sentences, 0}, {digits1, 0}};
    else if (is("bailingmoe bailingmoe2 llada-moe"))
        p.stages = {{R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)", 0}};
    else if (is("seed-coder"))
        p.stages = {{R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)", 0}};
    else
        throw Error(where + ": the pre-tokeniser '" + printable(name.empty() ? "(none)" : name) +
                    "' is not known, and the ids would be wrong without it");
    p.ignore_merges = is(
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 tekken");
    p.nfc = is("qwen2 deepseek-r1-qwen");
    return p;
}

inline VocabularySource vocabulary_from_parts(VocabularyParts parts)
{
    using transformer::TokenType;
    const std::string& where = parts.name;
    const size_t n = parts.tokens.size();
    if (!n) throw Error(where + ": has no tokens");
    if ((!parts.scores.empty() && parts.scores.size() != n) ||
        (!parts.types.empty() && parts.types.size() != n))
        throw Error(where + ": has " + std::to_string(n) +
                    " tokens, but not as many scores or types");
    VocabularySource v;
    static const TokenType types[] = {
        TokenType::normal,       TokenType::normal, TokenType::unknown, TokenType::control,
        TokenType::user_defined, TokenType::unused, TokenType::byte};
    v.types.assign(n, TokenType::normal);
    for (size_t i = 0; i < parts.types.size(); i++)
        v.types[i] = parts.types[i] >= 0 && parts.types[i] <= 6 ? types[parts.types[i]]
                                                                : TokenType::normal;
    const auto id = [&](int32_t given) {
        return given >= 0 && static_cast<size_t>(given) < n ? given : -1;
    };
    NormalSteps steps;
    const bool pieces = parts.model == "llama" || parts.model == "t5";
    if (pieces) {
        const bool unigram = parts.model == "t5";
        v.kind = unigram ? transformer::VocabularyKind::unigram
                         : transformer::VocabularyKind::sentencepiece_bpe;
        v.scores = parts.scores;
        if (v.scores.empty()) throw Error(where + ": has no scores, which its kind needs");
        v.flags = transformer::vocabulary_fuse_unknown;
        bool fallback = false;
        for (size_t i = 0; i < n; i++) {
            uint32_t byte = 0;
            if (v.types[i] != TokenType::byte) continue;
            if (parts.tokens[i].size() != 6 ||
                std::sscanf(parts.tokens[i].c_str(), "<0x%02X>", &byte) != 1)
                throw Error(where + ": the byte token " + printable(parts.tokens[i]) +
                            " has no byte");
            parts.tokens[i].assign(1, static_cast<char>(static_cast<unsigned char>(byte)));
            fallback = true;
        }
        if (fallback) v.flags |= transformer::vocabulary_byte_fallback;
        const bool prefix = parts.add_space_prefix != 0,
                   collapse = parts.remove_extra_whitespaces > 0;
        if (prefix) v.flags |= transformer::vocabulary_dummy_prefix;
        if (collapse) v.flags |= transformer::vocabulary_collapse_spaces;
        steps.map(parts.charsmap.empty() ? NormalSteps::Map() : charsmap(parts.charsmap, where),
                  1 | 2);
        steps.spaces((prefix ? 1u : 0u) | (collapse ? 2u : 0u));
        v.unknown = id(parts.unknown);
        for (size_t i = 0; i < n && v.unknown < 0; i++)
            if (v.types[i] == TokenType::unknown) v.unknown = static_cast<int32_t>(i);
        require_all_text(v, where);
    } else if (parts.model == "gpt2") {
        v.kind = transformer::VocabularyKind::byte_bpe;
        std::unordered_map<std::string, uint32_t> ids;
        for (size_t i = 0; i < n; i++) ids.emplace(parts.tokens[i], static_cast<uint32_t>(i));
        for (size_t i = 0; i < parts.merges.size(); i++) {
            const size_t blank = parts.merges[i].find(' ', 1);
            const auto find = [&](const std::string& text) {
                const auto found = ids.find(text);
                return found == ids.end() ? -1 : static_cast<int64_t>(found->second);
            };
            const std::string left = parts.merges[i].substr(0, blank),
                              right = blank == std::string::npos
                                          ? ""
                                          : parts.merges[i].substr(blank + 1);
            const int64_t a = find(left), b = find(right), both = find(left + right);
            if (a < 0 || b < 0 || both < 0)
                throw Error(where + ": merge " + std::to_string(i) +
                            " is not one of two tokens that make a third");
            v.merges.push_back({static_cast<uint32_t>(a), static_cast<uint32_t>(b),
                                static_cast<uint32_t>(i), static_cast<uint32_t>(both)});
        }
        const PreTokenizer pre = pre_tokenizer_named(parts.pre, where);
        if (pre.ignore_merges) v.flags |= transformer::vocabulary_ignore_merges;
        if (pre.nfc) steps.compose(false, true);
        byte_level(v, pre.stages, where, true);
        if (parts.add_space_prefix > 0) steps.prefix(" ", 1, true);
    } else if (parts.model == "bert") {
        std::vector<std::string> tokens;
        for (size_t i = 0; i < n; i++) { // words begin with U+2581 there, what goes on with nothing
            const std::string& t = parts.tokens[i];
            if (t.compare(0, 3, space_mark) == 0) tokens.push_back(t.substr(3));
            else
                tokens.push_back(v.types[i] == TokenType::control ||
                                         v.types[i] == TokenType::unknown ||
                                         (t.size() > 2 && t[0] == '[' && t.back() == ']')
                                     ? t
                                     : "##" + t);
        }
        bool lower = true;
        for (const std::string& t : tokens)
            lower = lower && !(t.size() > 1 && t[0] >= 'A' && t[0] <= 'Z');
        BertOptions o;
        o.lower = lower;
        v = wordpiece_vocabulary(std::move(tokens), o, where);
        if (v.classify < 0) v.classify = id(parts.classify >= 0 ? parts.classify : parts.bos);
        if (v.separator < 0) v.separator = id(parts.separator);
    } else {
        throw Error(where + ": a vocabulary of the kind '" + printable(parts.model) +
                    "' is not supported");
    }
    const bool bert = parts.model == "bert";
    for (size_t i = 0; i < n && !bert; i++) {
        const bool special = v.types[i] == TokenType::control || v.types[i] == TokenType::unknown;
        std::string text = pieces && v.types[i] != TokenType::byte
                               ? replaced(parts.tokens[i], space_mark, " ")
                               : parts.tokens[i];
        if (special || v.types[i] == TokenType::user_defined) {
            AddedToken a;
            a.text = special ? parts.tokens[i] : text;
            a.id = static_cast<uint32_t>(i);
            a.special = special;
            a.symbol = pieces && !special;
            if (!a.text.empty()) v.added.push_back(a);
        } else if (!pieces) {
            text = bytes_of(text);
        }
        v.tokens.push_back(std::move(text));
    }
    if (!bert) {
        v.normal = steps.bytes;
        v.growth = std::min(64u, steps.growth()),
        v.growth_chars = std::min(64u, steps.growth_chars());
        v.separator = id(parts.separator), v.classify = id(parts.classify), v.mask = id(parts.mask);
        const bool bos = parts.add_bos < 0 ? parts.model == "llama" : parts.add_bos > 0,
                   eos = parts.add_eos < 0 ? parts.model == "t5" : parts.add_eos > 0;
        if (bos) v.flags |= transformer::vocabulary_add_bos;
        if (eos) v.flags |= transformer::vocabulary_add_eos;
    }
    v.bos = id(parts.bos), v.eos = id(parts.eos);
    if (parts.pad >= 0) v.pad = id(parts.pad);
    for (const int32_t stop : {v.eos, id(parts.eot)})
        if (stop >= 0 && std::find(v.stop.begin(), v.stop.end(), stop) == v.stop.end())
            v.stop.push_back(stop);
    v.chat_template = parts.chat_template;
    return v;
}

}  // namespace weights
#endif
