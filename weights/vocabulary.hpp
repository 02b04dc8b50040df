// weights/vocabulary.hpp - a vocabulary as the readers give it, and the chunks that transformer.hpp
// reads
//
// Everything that makes tokenizing fast or exact is worked out here, once: a trie of the tokens, a
// hash table of the merges, steps of normalisation with the Unicode data that they need, automata
// for the pre-tokeniser. README.md describes the chunks.
#ifndef TRANSFORMER_WEIGHTS_VOCABULARY_HPP
#define TRANSFORMER_WEIGHTS_VOCABULARY_HPP

#include "../transformer.hpp"
#include "regex.hpp"

#include <array>
#include <cmath>
#include <numeric>
#include <set>
#include <unordered_map>

namespace weights {

struct AddedToken {                 // found in the text before anything else happens to it
    std::string text;
    uint32_t id = 0;
    bool special = false;           // only looked for when special tokens are
    bool strips_left = false, strips_right = false; // blanks beside it belong to it
    bool normalised = false;        // looked for in normalised text; `text` is normalised
    bool symbol = false; // SentencePiece's user-defined symbol: in normalised text, and left alone
                         // by the rules
};

struct VocabularySource {
    transformer::VocabularyKind kind = transformer::VocabularyKind::none;
    uint32_t flags = 0;
    std::vector<std::string> tokens; // as they are printed: SentencePiece's U+2581 is a space here
    std::vector<float> scores;
    std::vector<transformer::TokenType> types;
    std::vector<std::array<uint32_t, 4>> merges;               // left, right, rank, result
    std::vector<int32_t> stop;
    int32_t bos = -1, eos = -1, unknown = -1, pad = -1, separator = -1, classify = -1, mask = -1;
    uint32_t growth = 0, growth_chars = 0; // of text that is normalised; 0: what the kind needs
    uint32_t longest_word = 100;                               // WordPiece: characters
    std::vector<AddedToken> added;
    std::vector<uint32_t> layout,
        pair_layout;                    // ids (+ type << 24), layout_a and layout_b for the texts
    std::string normal, split, classes; // chunks: steps, automata and their classes
    std::string chat_template, labels;
};
constexpr uint32_t layout_a = 0xffffff, layout_b = 0xfffffe;

// ---- Bytes --------------------------------------------------------------------------------------

class Words {                       // a payload of 32-bit words
public:
    Words& operator<<(uint32_t value)
    {
        unsigned char b[4];
        store_u32(b, value);
        bytes.append(reinterpret_cast<const char*>(b), 4);
        return *this;
    }
    Words& operator<<(int32_t value) { return *this << static_cast<uint32_t>(value); }
    Words& operator<<(float value)
    {
        uint32_t word;
        std::memcpy(&word, &value, sizeof word);
        return *this << word;
    }
    Words& operator<<(const std::string& text) // padded to whole words
    {
        bytes += text;
        bytes.append((4 - bytes.size() % 4) % 4, '\0');
        return *this;
    }
    uint32_t size() const { return static_cast<uint32_t>(bytes.size() / 4); }
    std::string bytes;
};

class Chunks {
public:
    void add(transformer::Chunk tag, const std::string& payload)
    {
        if (payload.size() > UINT32_MAX - 3) throw Error("the vocabulary is larger than 4 GiB");
        words_ << static_cast<uint32_t>(tag) << static_cast<uint32_t>(payload.size()) << payload;
    }
    std::string bytes() const { return words_.bytes; }

private:
    Words words_;
};

// ---- Tries --------------------------------------------------------------------------------------

// A double-array trie in the form that transformer.hpp walks through, see its section 21. Keys are
// at most 1,024 bytes long.
class TrieBuilder {
public:
    static constexpr size_t longest_key = 1024;
    using Keys = std::map<std::string, uint32_t>;

    static std::string build(const Keys& keys)
    {
        TrieBuilder b;
        std::vector<std::pair<std::string_view, uint32_t>> list;
        for (const auto& [key, value] : keys)
            if (!key.empty() && key.size() <= longest_key) list.push_back({key, value});
        b.reserve(0);
        b.units_[0] = 0;
        if (!list.empty()) b.arrange(list, 0, list.size(), 0, 0);
        Words out;
        while (b.units_.size() > 1 && b.units_.back() == unused) b.units_.pop_back();
        for (const uint32_t unit : b.units_) out << unit;
        return out.bytes;
    }

private:
    static constexpr uint32_t unused = 0xffffffff, block = 512, open_blocks = 16, none = 0xffffffff;

    void grow()
    {
        const uint32_t from = static_cast<uint32_t>(units_.size());
        if (from > 1u << 28) throw Error("the vocabulary is too large");
        units_.resize(from + block, unused);
        base_used_.resize(from + block, false);
        taken_.resize(from + block, false);
        next_.resize(from + block);
        before_.resize(from + block);
        for (uint32_t i = from; i < from + block; i++) {       // append to the list of free units
            next_[i] = none;
            before_[i] = last_;
            (last_ == none ? first_ : next_[last_]) = i;
            last_ = i;
        }
        if (units_.size() >
            block * open_blocks) { // blocks that are nearly full are not looked at again
            const uint32_t end = static_cast<uint32_t>(units_.size()) - block * open_blocks;
            while (first_ != none && first_ < end) unlink(first_);
        }
    }
    void unlink(uint32_t i)
    {
        (before_[i] == none ? first_ : next_[before_[i]]) = next_[i];
        (next_[i] == none ? last_ : before_[next_[i]]) = before_[i];
    }
    void reserve(uint32_t i)
    {
        while (i >= units_.size()) grow();
        if (i >= block * open_blocks &&
            i < units_.size() - std::min<size_t>(units_.size(), block * open_blocks))
            return;
        if (!taken_[i]) {
            taken_[i] = true;
            unlink(i);
        }
    }
    static bool reachable(uint32_t node, uint32_t base)
    {
        const uint32_t distance = node ^ base;
        return distance < 1u << 20 || (!(distance & 511) && distance >> 9 < 1u << 20);
    }
    uint32_t find_base(uint32_t node, const std::vector<uint32_t>& labels)
    {
        uint32_t tries = 0;
        for (uint32_t free = first_; free != none && tries < 2000; free = next_[free], tries++) {
            const uint32_t base = free ^ labels[0];
            if (base_used_[base] || !reachable(node, base)) continue;
            bool fits = true;
            for (size_t i = 1; i < labels.size() && fits; i++) fits = !taken_[base ^ labels[i]];
            if (fits) return base;
        }
        const uint32_t base = static_cast<uint32_t>(units_.size()) |
                              (node & 511); // a new block, at a distance that always fits
        grow();
        return base;
    }
    void arrange(const std::vector<std::pair<std::string_view, uint32_t>>& list, size_t begin,
                 size_t end, size_t depth, uint32_t node)
    {
        std::vector<uint32_t> labels;
        std::vector<size_t> starts;
        for (size_t i = begin; i < end; i++) {
            const std::string_view key = list[i].first;
            const uint32_t label = depth < key.size() ? static_cast<unsigned char>(key[depth]) + 1u
                                                      : 0;
            if (labels.empty() || labels.back() != label) {
                labels.push_back(label);
                starts.push_back(i);
            }
        }
        starts.push_back(end);
        const uint32_t base = find_base(node, labels), distance = node ^ base;
        base_used_[base] = true;
        for (const uint32_t label : labels) reserve(base ^ label);
        const uint32_t own = node ? units_[node] & 511 : 0;
        units_[node] = own | (labels[0] == 0 ? 512u : 0u) |
                       (distance < 1u << 20 ? distance << 11 : (distance >> 9) << 11 | 1024u);
        for (size_t i = 0; i < labels.size(); i++)
            units_[base ^ labels[i]] = labels[i] ? labels[i] : list[begin].second | 1u << 31;
        for (size_t i = 0; i < labels.size(); i++)
            if (labels[i]) arrange(list, starts[i], starts[i + 1], depth + 1, base ^ labels[i]);
    }

    std::vector<uint32_t> units_, next_, before_;
    std::vector<bool> base_used_, taken_;
    uint32_t first_ = none, last_ = none;
};

// ---- Normalising --------------------------------------------------------------------------------

inline std::string utf8(uint32_t c)
{
    std::string out;
    const auto put = [&](uint32_t byte) {
        out += static_cast<char>(static_cast<unsigned char>(byte));
    };
    if (c < 0x80) put(c);
    else if (c < 0x800) put(0xc0 | c >> 6);
    else if (c < 0x10000) put(0xe0 | c >> 12);
    else put(0xf0 | c >> 18);
    if (c >= 0x10000) put(0x80 | (c >> 12 & 63));
    if (c >= 0x800) put(0x80 | (c >> 6 & 63));
    if (c >= 0x80) put(0x80 | (c & 63));
    return out;
}
// The next character of text that is known to be UTF-8 or nearly so.
inline uint32_t next_code(const std::string& s, size_t* at)
{
    const auto byte = [&](size_t i) {
        return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u;
    };
    const uint32_t lead = byte(*at), more = lead >= 0xf0   ? 3
                                            : lead >= 0xe0 ? 2
                                            : lead >= 0xc0 ? 1
                                                           : 0;
    uint32_t c = more == 3 ? lead & 7 : more == 2 ? lead & 15 : more ? lead & 31 : lead;
    for (uint32_t i = 1; i <= more; i++) c = c << 6 | (byte(*at + i) & 63);
    *at += more + 1;
    return c;
}

struct Decompositions {             // one step each; Hangul is left out
    struct One {
        std::vector<uint32_t> parts;
        bool compatible, again;     // `again`: composed again by NFC
    };
    std::map<uint32_t, One> of;

    static const Decompositions& all()
    {
        static const Decompositions one;
        return one;
    }
    // The full decomposition of a character, Hangul too.
    std::string full(uint32_t c, bool compatible) const
    {
        if (c - 0xac00 < 11172) {
            const uint32_t s = c - 0xac00;
            return utf8(0x1100 + s / 588) + utf8(0x1161 + s % 588 / 28) +
                   (s % 28 ? utf8(0x11a7 + s % 28) : std::string());
        }
        const auto found = of.find(c);
        if (found == of.end() || (found->second.compatible && !compatible)) return utf8(c);
        std::string out;
        for (const uint32_t part : found->second.parts) out += full(part, compatible);
        return sorted(out);
    }
    static uint32_t combining(uint32_t c)
    {
        const auto after = std::upper_bound(std::begin(unicode_combining),
                                            std::end(unicode_combining), c << 8 | 255);
        return after[-1] & 255;
    }
    static std::string sorted(const std::string& text) // marks in the order of their classes
    {
        std::vector<uint32_t> codes;
        for (size_t at = 0; at < text.size();) codes.push_back(next_code(text, &at));
        for (size_t i = 0; i < codes.size();) {
            size_t end = i;
            while (end < codes.size() && combining(codes[end])) end++;
            std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(i),
                             codes.begin() + static_cast<ptrdiff_t>(end),
                             [](uint32_t a, uint32_t b) { return combining(a) < combining(b); });
            i = end + 1;
        }
        std::string out;
        for (const uint32_t c : codes) out += utf8(c);
        return out;
    }

private:
    Decompositions()
    {
        for (size_t i = 0; i < std::size(unicode_decomposition);) {
            const uint32_t head = unicode_decomposition[i++], n = head >> 2 & 63;
            One& one = of[head >> 8];
            one.compatible = head & 2;
            one.again = head & 1;
            one.parts.assign(unicode_decomposition + i, unicode_decomposition + i + n);
            i += n;
        }
    }
};

inline std::string lower_case(uint32_t c)
{
    static const std::map<uint32_t, uint32_t> all = [] {
        std::map<uint32_t, uint32_t> m;
        for (size_t i = 0; i < std::size(unicode_lower); i += 4)
            for (uint32_t k = unicode_lower[i]; k <= unicode_lower[i + 1];
                 k += unicode_lower[i + 2])
                m[k] = k + unicode_lower[i + 3];
        return m;
    }();
    if (c == 0x130) return "i\xcc\x87";
    const auto found = all.find(c);
    return utf8(found == all.end() ? c : found->second);
}

// Builds the steps and keeps what they do, to say how much text can grow by them and to normalise
// added tokens.
class NormalSteps {
public:
    using Map = std::map<std::string, std::string>;
    enum : uint32_t {
        map_step = 1,
        compose_step,
        spaces_step,
        escape_step,
        collapse_step,
        strip_step,
        prefix_step, clusters_step,
        late = 0x80000000
    };

    // flags: 1 user-defined symbols stay, 2 bytes that are not UTF-8 become U+FFFD, 4 they are
    // dropped.
    // `clusters`: by grapheme clusters, with the words that tell their characters apart.
    void map(const Map& m, uint32_t flags, const std::string* clusters = nullptr)
    {
        TrieBuilder::Keys keys;
        std::string pool;
        std::map<std::string, uint32_t> placed;
        for (const auto& [from, to] : m) keys[from] = place(to, pool, placed);
        const std::string trie = TrieBuilder::build(keys);
        Words w;
        w << flags << static_cast<uint32_t>(trie.size() / 4);
        if (clusters) w << static_cast<uint32_t>(clusters->size() / 4);
        w << trie << (clusters ? *clusters : std::string()) << pool;
        step(clusters ? clusters_step : map_step, w);
        maps_.push_back(m);
        if (flags & 2) invalid_ = 3;
        for (const auto& [from, to] : m) {
            if (from.empty()) continue;
            grow(from, to);
            size_t at = 0;
            codes_.insert(next_code(from, &at));
        }
    }
    void compose(bool compatible, bool composes)
    {
        const Decompositions& d = Decompositions::all();
        TrieBuilder::Keys keys;
        std::string pool;
        std::map<std::string, uint32_t> placed;
        std::set<uint32_t> changes; // starters that are not always left alone
        Map m;
        for (const auto& [c, one] : d.of) {
            const std::string full = d.full(c, compatible);
            if (full != utf8(c)) {
                keys[utf8(c)] = place(full, pool, placed);
                m[utf8(c)] = full;
                codes_.insert(c);
                if (!composes || !one.again || one.compatible) changes.insert(c);
            }
            if (!composes || !one.again) continue;
            keys["\xff" + utf8(one.parts[0]) + utf8(one.parts[1])] = place(utf8(c), pool, placed);
            changes.insert(one.parts[1]);
        }
        // A canonical composite of something compatible changes too.
        if (composes && compatible)
            for (const auto& [c, one] : d.of)
                if (d.full(c, true) != d.full(c, false)) changes.insert(c);
        const auto add_range = [&](uint32_t first, uint32_t last) {
            for (uint32_t c = first; c <= last; c++) changes.insert(c);
        };
        if (composes) add_range(0x1161, 0x1175), add_range(0x11a8, 0x11c2);
        Words classes;
        uint32_t before = 0;
        classes << 0u;
        std::map<uint32_t, bool> bounds;
        for (const uint32_t head : unicode_combining) bounds[head >> 8] = true;
        for (const uint32_t c : changes) bounds[c] = bounds[c + 1] = true;
        bounds[0xac00] = bounds[0xd7a4] = true;
        for (const auto& [c, is] : bounds) {
            const bool hangul = !composes && c >= 0xac00 && c < 0xd7a4,
                       changed = is && (hangul || changes.count(c));
            const uint32_t which = Decompositions::combining(c) ? Decompositions::combining(c)
                                   : changed                    ? 255
                                                                : 0;
            if (which != before) classes << (c << 8 | which);
            before = which;
        }
        const std::string trie = TrieBuilder::build(keys);
        Words w;
        w << static_cast<uint32_t>(composes) << static_cast<uint32_t>(trie.size() / 4)
          << classes.size() << trie << classes.bytes << pool;
        step(compose_step, w);
        maps_.push_back(std::move(m));
        hangul_ = maps_.size();
    }
    // SentencePiece's: 1 a blank in front, 2 runs of blanks become one, 4 the blank behind instead
    // of in front.
    void spaces(uint32_t flags)
    {
        Words w;
        w << flags;
        step(spaces_step, w);
    }
    void escape() { step(escape_step, Words()); }
    void collapse(const std::string& content)
    {
        Words w;
        w << 0u << static_cast<uint32_t>(content.size()) << content;
        step(collapse_step, w);
    }
    void strip(bool left, bool right)
    {
        Words w;
        w << (left ? 1u : 0u) + (right ? 2u : 0u);
        step(strip_step, w);
    }
    // flags: 1 unless it is there, 2 only at the start of the whole text, 4 U+2581 becomes a blank
    // first.
    void prefix(const std::string& text, uint32_t flags, bool is_late)
    {
        if (text.size() > 16)
            throw Error("a prefix of " + std::to_string(text.size()) +
                        " bytes is longer than supported");
        Words w;
        w << flags << static_cast<uint32_t>(text.size()) << text;
        step(is_late ? prefix_step | late : prefix_step, w);
        if (!is_late && !(flags & 3)) prefix_ = text;
    }

    std::string bytes;
    uint32_t growth() const { return std::max({1u, invalid_, growth_, measured(false)}); }
    uint32_t growth_chars() const { return std::max({1u, growth_chars_, measured(true)}); }

    // What the maps make of a text; combining marks are not composed.
    std::string apply(const std::string& text) const
    {
        std::string now = text;
        for (size_t i = 0; i < maps_.size(); i++) now = apply(maps_[i], now, i + 1 == hangul_);
        return now.empty() ? now : prefix_ + now;
    }

private:
    static uint32_t place(const std::string& text, std::string& pool,
                          std::map<std::string, uint32_t>& placed)
    {
        if (text.size() > 255)
            throw Error("a rule of normalisation gives " + std::to_string(text.size()) +
                        " bytes, more than 255");
        const auto found = placed.emplace(text, static_cast<uint32_t>(pool.size()));
        if (found.second) pool += static_cast<char>(text.size()) + text;
        return found.first->second;
    }
    void step(uint32_t kind, const Words& payload)
    {
        Words w;
        w << kind << payload.size();
        bytes += w.bytes + payload.bytes;
    }
    static size_t count(const std::string& s)
    {
        size_t n = 0;
        for (const char c : s) n += (c & 0xc0) != 0x80;
        return n;
    }
    static uint32_t ratio(size_t a, size_t b) { return static_cast<uint32_t>((a + b - 1) / b); }
    void grow(const std::string& from, const std::string& to)
    {
        growth_ = std::max(growth_, ratio(to.size(), from.size()));
        growth_chars_ = std::max(growth_chars_, ratio(count(to), from.size()));
    }
    static std::string apply(const Map& m, const std::string& text, bool hangul)
    {
        size_t longest = 0;
        for (const auto& [from, to] : m) longest = std::max(longest, from.size());
        std::string out;
        for (size_t at = 0; at < text.size();) {
            size_t n = std::min(longest, text.size() - at);
            Map::const_iterator found = m.end();
            while (n && (found = m.find(text.substr(at, n))) == m.end()) n--;
            if (n) {
                out += found->second;
                at += n;
                continue;
            }
            const uint32_t c = next_code(text, &at);
            out += hangul ? Decompositions::all().full(c, false) : utf8(c);
        }
        return out;
    }
    // How much one character grows through all steps.
    uint32_t measured(bool chars) const
    {
        uint32_t worst = 1;
        if (maps_.size() < 2 && !hangul_) return worst;
        std::vector<size_t> longest;
        for (const uint32_t c : codes_) {
            const std::string from = utf8(c);
            std::string now = from;
            for (const Map& m : maps_) { // character by character is enough for a bound
                std::string out;
                for (size_t at = 0; at < now.size();) {
                    const size_t begin = at;
                    next_code(now, &at);
                    const std::string one = now.substr(begin, at - begin);
                    const auto found = m.find(one);
                    out += found == m.end() ? one : found->second;
                }
                now = out;
            }
            worst = std::max(worst, chars ? ratio(count(now), from.size())
                                          : ratio(now.size(), from.size()));
        }
        return hangul_ && !chars ? std::max(worst, 3u) : worst;
    }

    std::vector<Map> maps_;
    std::set<uint32_t> codes_;
    std::string prefix_;
    size_t hangul_ = 0;
    uint32_t growth_ = 1, growth_chars_ = 1, invalid_ = 1;
};

// ---- The section --------------------------------------------------------------------------------

inline uint32_t merge_slot(uint32_t left, uint32_t right,
                           uint32_t n_slots) // pair_hash() of transformer.hpp
{
    uint32_t h = left * 0x9e3779b1u ^ right * 0x85ebca77u;
    h = (h ^ h >> 15) * 0x2c1b3c6du;
    return static_cast<uint32_t>((uint64_t{h ^ h >> 13} * n_slots) >> 32);
}

class MergeTable { // open addressing; no pair is farther than 256 slots from where it belongs
public:
    using Slot = std::array<uint32_t, 4>;

    explicit MergeTable(std::vector<Slot> list)
    {
        // Of a pair that is listed twice, the first (lowest) rank counts.
        std::sort(list.begin(), list.end());
        list.erase(
            std::unique(list.begin(), list.end(),
                        [](const Slot& a, const Slot& b) { return a[0] == b[0] && a[1] == b[1]; }),
            list.end());
        if (list.size() > 1u << 26) throw Error("the vocabulary has more than 2^26 merges");
        for (size_t n = std::max<size_t>(4, list.size() * 3 / 2);; n = n * 3 / 2) {
            if (n > 8 * list.size() + 64)
                throw Error(
                    "the vocabulary's merges are built so that they all fall into one place");
            slots.assign(n, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff});
            bool good = true;
            for (size_t i = 0; i < list.size() && good; i++) {
                uint32_t at = merge_slot(list[i][0], list[i][1], static_cast<uint32_t>(n)),
                         probes = 0;
                while (slots[at][0] != 0xffffffff && ++probes < 256) at = at + 1 == n ? 0 : at + 1;
                good = probes < 255;
                slots[at] = list[i];
            }
            if (good) break;
        }
    }
    const Slot* find(uint32_t left, uint32_t right) const
    {
        const uint32_t n = static_cast<uint32_t>(slots.size());
        for (uint32_t at = merge_slot(left, right, n), probes = 0;
             probes < 256 && slots[at][0] != 0xffffffff; probes++) {
            if (slots[at][0] == left && slots[at][1] == right) return &slots[at];
            at = at + 1 == n ? 0 : at + 1;
        }
        return nullptr;
    }
    std::vector<Slot> slots;
};

class VocabularyWriter {
public:
    explicit VocabularyWriter(const VocabularySource& source) : v(source), n(source.tokens.size())
    {}

    void write(Chunks& chunks)
    {
        using transformer::Chunk;
        using transformer::VocabularyKind;
        expect("scores", v.scores.size());
        expect("token types", v.types.size());
        if (n > 1u << 24)
            throw Error("the vocabulary has " + std::to_string(n) + " tokens, more than 2^24");
        if (v.kind == VocabularyKind::none) throw Error("the vocabulary has tokens but no kind");
        const bool pieces = v.kind == VocabularyKind::sentencepiece_bpe ||
                            v.kind == VocabularyKind::unigram;
        const bool plain_pieces = pieces &&
                                  v.normal.empty(); // SentencePiece with no more than its own rules
        find_ids();
        const MergeTable merges(v.merges);
        const TrieBuilder::Keys keys = find_keys(merges);
        uint32_t flags = v.flags & ~static_cast<uint32_t>(transformer::vocabulary_doubles_bos);
        if (!v.layout.empty()) flags |= transformer::vocabulary_doubles_bos;
        if (v.kind == VocabularyKind::sentencepiece_bpe && words_are_apart(merges))
            flags |= transformer::vocabulary_words;

        float least = std::numeric_limits<float>::max(),
              most = std::numeric_limits<float>::min(); // as in sentencepiece's unigram model
        for (size_t i = 0; i < v.scores.size(); i++) {
            if (!std::isfinite(v.scores[i]))
                throw Error("token " + std::to_string(i) + " has no finite score");
            if (type(i) != transformer::TokenType::normal) continue;
            least = std::min(least, v.scores[i]);
            most = std::max(most, v.scores[i]);
        }
        Words info, stop, offsets, scores, table, byte_ids, layout;
        const uint32_t growth = v.growth       ? v.growth
                                : plain_pieces ? 3
                                               : 1,
                       growth_chars = v.growth_chars ? v.growth_chars : 1;
        info << static_cast<uint32_t>(v.kind) << flags << static_cast<uint32_t>(n) << v.bos << v.eos
             << v.unknown << v.pad << v.separator << v.classify << v.mask << growth << growth_chars
             << v.longest_word << least - 10.0f << most;
        chunks.add(Chunk::info, info.bytes);
        for (const int32_t id : v.stop) stop << id;
        if (!v.stop.empty()) chunks.add(Chunk::stop, stop.bytes);
        std::string text, types;
        for (const std::string& token : v.tokens) {
            offsets << static_cast<uint32_t>(text.size());
            text += token;
            if (text.size() > UINT32_MAX - 3)
                throw Error("the text of the vocabulary is larger than 4 GiB");
        }
        offsets << static_cast<uint32_t>(text.size());
        chunks.add(Chunk::offsets, offsets.bytes);
        chunks.add(Chunk::text, text);
        for (const float score : v.scores) scores << score;
        if (!v.scores.empty()) chunks.add(Chunk::scores, scores.bytes);
        for (size_t i = 0; i < n; i++) types += static_cast<char>(type(i));
        chunks.add(Chunk::types, types);
        chunks.add(Chunk::trie, TrieBuilder::build(keys));
        for (const auto& m : merges.slots)
            for (const uint32_t w : m) table << w;
        if (!v.merges.empty()) chunks.add(Chunk::merges, table.bytes);
        for (const uint32_t id : bytes_) byte_ids << id;
        if (v.kind == VocabularyKind::byte_bpe || v.flags & transformer::vocabulary_byte_fallback)
            chunks.add(Chunk::bytes, byte_ids.bytes);
        if (plain_pieces) {
            NormalSteps steps;
            steps.map({}, 1 | 2);
            steps.spaces((v.flags & transformer::vocabulary_dummy_prefix ? 1u : 0u) |
                         (v.flags & transformer::vocabulary_collapse_spaces ? 2u : 0u));
            chunks.add(Chunk::normal, steps.bytes);
        } else if (!v.normal.empty()) {
            chunks.add(Chunk::normal, v.normal);
        }
        if (!v.split.empty()) {
            chunks.add(Chunk::classes, v.classes);
            chunks.add(Chunk::split, v.split);
        }
        add_added(chunks);
        const std::vector<uint32_t> single = single_layout();
        layout << static_cast<uint32_t>(single.size());
        for (const uint32_t item : single) layout << item;
        for (const uint32_t item : v.pair_layout) layout << item;
        chunks.add(Chunk::layout, layout.bytes);
    }

private:
    void expect(const char* what, size_t count) const
    {
        if (count && count != n)
            throw Error("the vocabulary has " + std::to_string(n) + " tokens but " +
                        std::to_string(count) + " " + what);
    }
    transformer::TokenType type(size_t i) const
    {
        return v.types.empty() ? transformer::TokenType::normal : v.types[i];
    }

    void find_ids()
    {
        using transformer::TokenType;
        bytes_.fill(0xffffffff);
        for (size_t i = n;
             i--;) { // of equal tokens the lowest id, but an unused one only if there is no other
            const std::string& t = v.tokens[i];
            const bool byte = type(i) == TokenType::byte ||
                              (v.kind == transformer::VocabularyKind::byte_bpe &&
                               type(i) == TokenType::normal);
            if (byte && t.size() == 1)
                bytes_[static_cast<unsigned char>(t[0])] = static_cast<uint32_t>(i);
            if (type(i) == TokenType::byte || type(i) == TokenType::control ||
                type(i) == TokenType::unknown || t.empty())
                continue;
            const auto found = ids_.emplace(t, static_cast<uint32_t>(i));
            if (!found.second &&
                (type(i) != TokenType::unused || type(found.first->second) == TokenType::unused))
                found.first->second = static_cast<uint32_t>(i);
        }
    }

    // The token's own text becomes that token and no other: then words that are tokens need no
    // merging.
    bool is_whole(const MergeTable& merges, uint32_t id) const
    {
        if (v.kind != transformer::VocabularyKind::byte_bpe &&
            v.kind != transformer::VocabularyKind::sentencepiece_bpe)
            return false;
        if (v.flags & transformer::vocabulary_ignore_merges) return true;
        const std::string& text = v.tokens[id];
        if (text.size() > 64) return false;
        struct Piece { uint32_t begin, end, id; };
        std::vector<Piece> pieces;
        for (size_t at = 0, end; at < text.size(); at = end) {
            end = at;
            if (v.kind == transformer::VocabularyKind::byte_bpe) end++;
            else next_code(text, &end);
            end = std::min(end, text.size());
            const auto found = v.kind == transformer::VocabularyKind::byte_bpe
                                   ? ids_.end()
                                   : ids_.find(std::string_view(text).substr(at, end - at));
            const uint32_t own = v.kind == transformer::VocabularyKind::byte_bpe
                                     ? bytes_[static_cast<unsigned char>(text[at])]
                                 : found == ids_.end() ? 0xffffffff
                                                       : found->second;
            pieces.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(end), own});
        }
        while (pieces.size() > 1) {
            size_t best = pieces.size();
            double best_rank = 0;
            uint32_t result = 0;
            for (size_t i = 0; i + 1 < pieces.size(); i++) {
                double rank;
                uint32_t made;
                if (!v.merges.empty()) {
                    const MergeTable::Slot* m = pieces[i].id == 0xffffffff ||
                                                        pieces[i + 1].id == 0xffffffff
                                                    ? nullptr
                                                    : merges.find(pieces[i].id, pieces[i + 1].id);
                    if (!m) continue;
                    rank = (*m)[2];
                    made = (*m)[3];
                } else {
                    const auto found = ids_.find(std::string_view(text).substr(
                        pieces[i].begin, pieces[i + 1].end - pieces[i].begin));
                    if (found == ids_.end()) continue;
                    made = found->second;
                    rank = v.scores.empty() ? 0.0 : -static_cast<double>(v.scores[made]);
                }
                if (best == pieces.size() || rank < best_rank)
                    best = i, best_rank = rank, result = made;
            }
            if (best == pieces.size()) return false;
            pieces[best].end = pieces[best + 1].end;
            pieces[best].id = result;
            pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(best) + 1);
        }
        return pieces.size() == 1 && pieces[0].id == id;
    }

    TrieBuilder::Keys find_keys(const MergeTable& merges) const
    {
        TrieBuilder::Keys keys;
        for (const auto& [text, id] : ids_) {
            // SentencePiece takes its symbols out of the text before it merges.
            const bool symbol = type(id) == transformer::TokenType::user_defined &&
                                v.kind == transformer::VocabularyKind::sentencepiece_bpe;
            keys[std::string(text)] = id | (!symbol && is_whole(merges, id) ? 1u << 24 : 0u);
        }
        return keys;
    }

    bool words_are_apart(const MergeTable& merges) const
    {
        const auto apart = [](std::string_view text) {
            for (size_t i = 1; i < text.size(); i++)
                if (text[i] == ' ' && text[i - 1] != ' ') return false;
            return true;
        };
        if (v.merges.empty())
            for (const auto& [text, id] : ids_)
                if (!apart(text)) return false;
        for (const auto& m : merges.slots)
            if (m[0] != 0xffffffff && !apart(v.tokens[m[3]])) return false;
        return true;
    }

    // Those of the source; where it has none, control tokens and user-defined ones by their type.
    void add_added(Chunks& chunks) const
    {
        using transformer::TokenType;
        std::vector<AddedToken> list = v.added;
        if (list.empty())
            for (size_t i = 0; i < n; i++) {
                const bool control = type(i) == TokenType::control || type(i) == TokenType::unknown;
                if ((!control && type(i) != TokenType::user_defined) || v.tokens[i].empty())
                    continue;
                AddedToken a;
                a.text = v.tokens[i];
                a.id = static_cast<uint32_t>(i);
                a.special = control;
                a.symbol = !control && v.kind == transformer::VocabularyKind::sentencepiece_bpe;
                list.push_back(a);
            }
        if (list.empty()) return;
        TrieBuilder::Keys keys;
        Words words;
        words << static_cast<uint32_t>(list.size());
        for (size_t i = 0; i < list.size(); i++) {
            const AddedToken& a = list[i];
            if (a.id >= n)
                throw Error("the added token " + printable(a.text) + " has the id " +
                            std::to_string(a.id) + ", outside the vocabulary");
            words << a.id
                  << ((a.strips_left ? 1u : 0u) | (a.strips_right ? 2u : 0u) |
                      (a.normalised ? 4u : 0u) | (a.symbol ? 8u : 0u) | (a.special ? 16u : 0u));
            const auto found = keys.emplace(a.text, static_cast<uint32_t>(i));
            if (!found.second && list[found.first->second].normalised && !a.normalised)
                found.first->second = static_cast<uint32_t>(i);
        }
        words << TrieBuilder::build(keys);
        chunks.add(transformer::Chunk::added, words.bytes);
    }

    std::vector<uint32_t> single_layout() const
    {
        if (!v.layout.empty()) return v.layout;
        std::vector<uint32_t> out;
        if (v.flags & transformer::vocabulary_add_bos && v.bos >= 0)
            out.push_back(static_cast<uint32_t>(v.bos));
        out.push_back(layout_a);
        if (v.flags & transformer::vocabulary_add_eos && v.eos >= 0)
            out.push_back(static_cast<uint32_t>(v.eos));
        return out;
    }

    const VocabularySource& v;
    size_t n;
    std::unordered_map<std::string_view, uint32_t> ids_;
    std::array<uint32_t, 256> bytes_{};
};

// Empty if the source has nothing to say. Labels can stand without tokens, all else describes
// tokens.
inline std::string vocabulary_section(const VocabularySource& v)
{
    using transformer::Chunk;
    Chunks chunks;
    if (!v.tokens.empty()) VocabularyWriter(v).write(chunks);
    if (!v.chat_template.empty()) chunks.add(Chunk::chat_template, v.chat_template);
    if (!v.labels.empty()) chunks.add(Chunk::labels, v.labels);
    return chunks.bytes();
}

// A vocabulary by itself, for transformer::open_vocabulary; the bytes must outlive the view.
inline std::vector<unsigned char> write_vocabulary(const VocabularySource& v)
{
    const std::string bytes = vocabulary_section(v);
    return std::vector<unsigned char>(bytes.begin(), bytes.end());
}

// The other way: a source that writes the same section again.
inline VocabularySource vocabulary_source(const transformer::Vocabulary& v)
{
    VocabularySource out;
    const auto word = [](const transformer::Span& s, size_t i) { return load_u32(s.data + 4 * i); };
    const auto raw = [](const transformer::Span& s) {
        return s.n ? std::string(reinterpret_cast<const char*>(s.data), 4 * size_t{s.n})
                   : std::string();
    };
    out.kind = v.kind, out.flags = v.flags;
    out.bos = v.bos, out.eos = v.eos, out.unknown = v.unknown, out.pad = v.pad;
    out.separator = v.separator, out.classify = v.classify, out.mask = v.mask;
    out.growth = v.growth, out.growth_chars = v.growth_chars, out.longest_word = v.longest_word;
    for (uint32_t i = 0; i < v.n_tokens; i++) {
        uint32_t n = 0;
        const char* text = transformer::token_text(v, static_cast<int32_t>(i), &n);
        out.tokens.emplace_back(text, n);
        if (v.scores.n) out.scores.push_back(load_f32(v.scores.data + 4 * size_t{i}));
        out.types.push_back(static_cast<transformer::TokenType>(v.types[i]));
    }
    for (uint32_t i = 0; i < v.stop.n; i++)
        out.stop.push_back(load_i32(v.stop.data + 4 * size_t{i}));
    for (uint32_t i = 0; i < v.merges.n; i += 4)
        if (word(v.merges, i) != 0xffffffff)
            out.merges.push_back({word(v.merges, i), word(v.merges, i + 1), word(v.merges, i + 2),
                                  word(v.merges, i + 3)});
    const uint32_t n_added = v.added.n / 2;
    out.added.resize(n_added);
    for (uint32_t i = 0; i < n_added; i++) {
        AddedToken& a = out.added[i];
        const uint32_t flags = word(v.added, 2 * size_t{i} + 1);
        a.id = word(v.added, 2 * size_t{i});
        a.strips_left = flags & 1, a.strips_right = flags & 2, a.normalised = flags & 4,
        a.symbol = flags & 8, a.special = flags & 16;
    }
    // The texts of added tokens stand in the trie alone.
    const auto walk = [&](const auto& self, uint32_t node, const std::string& key) -> void {
        const auto base = [&](uint32_t unit) {
            return node ^ (unit >> 11 & 0xfffff) << (unit & 1024 ? 9 : 0);
        };
        const uint32_t unit = word(v.added_trie, node);
        if (unit & 512 && base(unit) < v.added_trie.n) {
            const uint32_t at = word(v.added_trie, base(unit)) & 0x7fffffff;
            if (at < n_added) out.added[at].text = key;
        }
        for (uint32_t c = 0; c < 256 && key.size() < TrieBuilder::longest_key; c++) {
            const uint32_t next = base(unit) ^ (c + 1);
            if (next < v.added_trie.n && (word(v.added_trie, next) & 0x800001ff) == c + 1)
                self(self, next, key + static_cast<char>(c));
        }
    };
    if (v.added_trie.n) walk(walk, 0, "");
    out.added.erase(std::remove_if(out.added.begin(), out.added.end(),
                                   [](const AddedToken& a) { return a.text.empty(); }),
                    out.added.end());
    // Where the layout follows from the flags, the source had none.
    const uint32_t n_single = v.layout.n ? word(v.layout, 0) : 0;
    const bool own = (v.flags & transformer::vocabulary_doubles_bos) != 0;
    for (uint32_t i = 1; i < v.layout.n; i++) {
        if (i > n_single) out.pair_layout.push_back(word(v.layout, i));
        else if (own) out.layout.push_back(word(v.layout, i));
    }
    out.normal = raw(v.normal), out.split = raw(v.split), out.classes = raw(v.classes);
    if (v.chat_template) out.chat_template.assign(v.chat_template, v.chat_template_size);
    if (v.labels) out.labels.assign(v.labels, v.labels_size);
    return out;
}

}  // namespace weights
#endif
