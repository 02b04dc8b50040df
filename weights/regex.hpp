// weights/regex.hpp - regular expressions of pre-tokenisers, made into the automata that
// transformer.hpp runs
//
// A pattern becomes a tree, the tree a nondeterministic automaton whose threads are ordered as a
// backtracking matcher would try them (Pike's construction), that one a deterministic table over
// classes of characters: the same match as that of a backtracking engine, in linear time. Lookahead
// of one character, (?!\S) or $, is part of it: the table reads one character more than it matches.
// Known: literals, classes with ranges, negation and &&, \p{..} of categories, \s \S \d \w, groups,
// (?i:..), | ? * + {m,n}, lazy and possessive forms. Anything else is refused by name, for it would
// change the ids.
#ifndef TRANSFORMER_WEIGHTS_REGEX_HPP
#define TRANSFORMER_WEIGHTS_REGEX_HPP

#include "files.hpp"
#include "unicode.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace weights {

// ---- Sets of characters -------------------------------------------------------------------------

constexpr uint32_t end_of_text = 0x110001,
                   no_character = 0x110000; // what is not UTF-8 counts as an unassigned character

struct CodeSet {                    // ascending, apart
    std::vector<std::pair<uint32_t, uint32_t>> ranges;

    bool has(uint32_t c) const
    {
        const auto after = std::upper_bound(ranges.begin(), ranges.end(),
                                            std::make_pair(c, UINT32_MAX));
        return after != ranges.begin() && after[-1].second >= c;
    }
    CodeSet& add(uint32_t first, uint32_t last)
    {
        ranges.push_back({first, last});
        return tidied();
    }
    CodeSet& add(const CodeSet& other)
    {
        ranges.insert(ranges.end(), other.ranges.begin(), other.ranges.end());
        return tidied();
    }
    CodeSet& tidied()
    {
        std::sort(ranges.begin(), ranges.end());
        size_t n = 0;
        for (const auto& r : ranges) {
            if (n && r.first <= ranges[n - 1].second + 1)
                ranges[n - 1].second = std::max(ranges[n - 1].second, r.second);
            else
                ranges[n++] = r;
        }
        ranges.resize(n);
        return *this;
    }
    CodeSet inverted() const        // of the characters; the end of the text is none
    {
        CodeSet out;
        uint32_t from = 0;
        for (const auto& [first, last] : ranges) {
            if (first > from) out.ranges.push_back({from, first - 1});
            from = last + 1;
        }
        if (from <= no_character) out.ranges.push_back({from, no_character});
        return out;
    }
    CodeSet& keep(const CodeSet& other)
    {
        CodeSet gone = inverted();
        *this = gone.add(other.inverted()).inverted();
        return *this;
    }
};

inline uint32_t category_index(std::string_view name)
{
    const std::string_view names = unicode_categories;
    const size_t at = name.size() == 2 ? names.find(name) : std::string_view::npos;
    return at == std::string_view::npos ? 99 : static_cast<uint32_t>(at / 3);
}
inline uint32_t category_of(uint32_t c)
{
    const auto after = std::upper_bound(std::begin(unicode_category), std::end(unicode_category),
                                        c << 5 | 31);
    return after[-1] & 31;
}
// The characters whose category begins so: "L", "Lu" ... Empty: there is none of that name.
inline CodeSet category(std::string_view name)
{
    CodeSet out;
    const std::string_view names = unicode_categories;
    const size_t n = std::size(unicode_category);
    for (size_t i = 0; i < n; i++) {
        const uint32_t which = unicode_category[i] & 31;
        if (names.substr(3 * which, name.size()) != name || name.empty() || name.size() > 2)
            continue;
        const uint32_t first = unicode_category[i] >> 5,
                       last = i + 1 < n ? (unicode_category[i + 1] >> 5) - 1 : no_character;
        if (!out.ranges.empty() && out.ranges.back().second + 1 == first)
            out.ranges.back().second = last;
        else
            out.ranges.push_back({first, last});
    }
    return out;
}
inline CodeSet white_space()
{
    CodeSet s;
    for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{9, 13},
                                      {32, 32},
                                      {0x85, 0x85},
                                      {0xa0, 0xa0},
                                      {0x1680, 0x1680},
                                      {0x2000, 0x200a},
                                      {0x2028, 0x2029},
                                      {0x202f, 0x202f},
                                      {0x205f, 0x205f},
                                      {0x3000, 0x3000}})
        s.add(first, last);
    return s;
}
inline CodeSet word_characters() // Unicode's \w: letters, marks, numbers of letters and digits,
                                 // connectors, joiners
{
    CodeSet s = category("L");
    for (const char* name : {"M", "Nd", "Nl", "Pc"}) s.add(category(name));
    return s.add(0x200c, 0x200d)
        .add(0x24b6, 0x24e9)
        .add(0x1f130, 0x1f149)
        .add(0x1f150, 0x1f169)
        .add(0x1f170, 0x1f189);
}
inline CodeSet han_script()
{
    CodeSet s;
    for (const auto& [first, last] : {std::pair<uint32_t, uint32_t>{0x2e80, 0x2e99},
                                      {0x2e9b, 0x2ef3},
                                      {0x2f00, 0x2fd5},
                                      {0x3005, 0x3005},
                                      {0x3007, 0x3007},
                                      {0x3021, 0x3029},
                                      {0x3038, 0x303b},
                                      {0x3400, 0x4dbf},
                                      {0x4e00, 0x9fff},
                                      {0xf900, 0xfa6d},
                                      {0xfa70, 0xfad9},
                                      {0x16fe2, 0x16fe3},
                                      {0x16ff0, 0x16ff1},
                                      {0x20000, 0x2a6df},
                                      {0x2a700, 0x2b739},
                                      {0x2b740, 0x2b81d},
                                      {0x2b820, 0x2cea1},
                                      {0x2ceb0, 0x2ebe0},
                                      {0x2ebf0, 0x2ee5d},
                                      {0x2f800, 0x2fa1d},
                                      {0x30000, 0x3134a},
                                      {0x31350, 0x323af}})
        s.ranges.push_back({first, last});
    return s;
}

// ---- Patterns -----------------------------------------------------------------------------------

struct Pattern {                    // an automaton with ordered threads; state 0 is the match
    struct State {
        enum Kind : uint8_t { match, character, fork, ahead } kind = match;
        CodeSet set; // of a character, or of what must come next; end_of_text can be in the latter
        uint32_t next = 0, other = 0;
    };
    std::vector<State> states{State{}};
    uint32_t first = 0;
};

class RegexParser {
public:
    RegexParser(const std::string& text, const std::string& where, bool line_ends)
        : text_(text), where_(where), line_ends_(line_ends)
    {}

    Pattern pattern()
    {
        const uint32_t tree = alternatives(0);
        if (at_ != text_.size()) fail("an opening bracket is missing");
        out_.first = build(tree, 0);
        return std::move(out_);
    }

private:
    struct Node {
        enum Kind : uint8_t { empty, set, sequence, choice, repeat, ahead } kind = empty;
        CodeSet chars;
        std::vector<uint32_t> parts;
        uint32_t least = 0, most = 0;
        bool lazy = false;
    };
    static constexpr uint32_t endless = 0xffffffff;

    [[noreturn]] void fail(const std::string& what) const
    {
        throw Error(where_ + ": the pattern '" + printable(text_, 200) +
                    "' is not supported: " + what + " at byte " + std::to_string(at_));
    }
    bool end() const { return at_ >= text_.size(); }
    bool take(std::string_view token)
    {
        if (std::string_view(text_).substr(std::min(at_, text_.size()), token.size()) != token)
            return false;
        at_ += token.size();
        return true;
    }
    uint32_t code()
    {
        if (end()) fail("it ends early");
        const auto byte = [&](size_t i) {
            return i < text_.size() ? static_cast<unsigned char>(text_[i]) : 0u;
        };
        const uint32_t lead = byte(at_), more = lead >= 0xf0   ? 3
                                                : lead >= 0xe0 ? 2
                                                : lead >= 0xc0 ? 1
                                                               : 0;
        uint32_t c = more == 3 ? lead & 7 : more == 2 ? lead & 15 : more ? lead & 31 : lead;
        for (uint32_t i = 1; i <= more; i++) c = c << 6 | (byte(at_ + i) & 63);
        at_ += more + 1;
        return c;
    }
    uint32_t add(Node node)
    {
        if (nodes_.size() > 20000) fail("it is too large");
        nodes_.push_back(std::move(node));
        return static_cast<uint32_t>(nodes_.size() - 1);
    }
    uint32_t add_set(CodeSet set)
    {
        Node n;
        n.kind = Node::set;
        n.chars = std::move(set);
        return add(std::move(n));
    }

    uint32_t alternatives(uint32_t depth)
    {
        if (depth > 100) fail("too many brackets");
        Node choice;
        choice.kind = Node::choice;
        do {
            Node sequence;
            sequence.kind = Node::sequence;
            while (!end() && text_[at_] != '|' && text_[at_] != ')') {
                const uint32_t part = repeated(depth);         // may move nodes_
                sequence.parts.push_back(part);
            }
            choice.parts.push_back(add(std::move(sequence)));
        } while (take("|"));
        return add(std::move(choice));
    }

    uint32_t number()
    {
        uint32_t n = 0;
        const size_t from = at_;
        while (!end() && text_[at_] >= '0' && text_[at_] <= '9')
            n = std::min(n * 10 + static_cast<uint32_t>(text_[at_++] - '0'), 100000u);
        if (at_ == from) fail("a number is missing");
        return n;
    }

    uint32_t repeated(uint32_t depth)
    {
        uint32_t node = atom(depth);
        while (true) {
            Node n;
            n.kind = Node::repeat;
            if (take("?")) n.most = 1;
            else if (take("*")) n.most = endless;
            else if (take("+")) n.least = 1, n.most = endless;
            else if (!end() && text_[at_] == '{' && at_ + 1 < text_.size() &&
                     text_[at_ + 1] >= '0' && text_[at_ + 1] <= '9') {
                at_++;
                n.least = n.most = number();
                if (take(",")) n.most = !end() && text_[at_] == '}' ? endless : number();
                if (!take("}") || n.most < n.least || (n.most != endless ? n.most : n.least) > 200)
                    fail("such a repetition");
            } else return node;
            if (nodes_[node].kind == Node::ahead) fail("a repeated lookahead");
            n.lazy = take("?");
            // A possessive form differs from the greedy one only where the greedy one would give
            // characters back; the patterns in use put it where what follows could not take them.
            if (!n.lazy) take("+");
            n.parts = {node};
            node = add(std::move(n));
        }
    }

    CodeSet cased(CodeSet set) const
    {
        if (!ignore_case_) return set;
        const CodeSet plain = set;
        for (uint32_t c = 'a'; c <= 'z'; c++)
            if (plain.has(c) || plain.has(c - 32)) set.add(c, c).add(c - 32, c - 32);
        if (set.has('s')) set.add(0x17f, 0x17f);
        if (set.has('k')) set.add(0x212a, 0x212a);
        return set;
    }

    uint32_t hexadecimal(uint32_t digits)
    {
        uint32_t c = 0, n = 0;
        const bool braces = take("{");
        for (; !end() && n < (braces ? 6 : digits); n++) {
            const char d = text_[at_];
            const int v = d >= '0' && d <= '9'   ? d - '0'
                          : d >= 'a' && d <= 'f' ? d - 'a' + 10
                          : d >= 'A' && d <= 'F' ? d - 'A' + 10
                                                 : -1;
            if (v < 0) break;
            c = c * 16 + static_cast<uint32_t>(v);
            at_++;
        }
        if (!n || (braces && !take("}")) || c > 0x10ffff) fail("a hexadecimal number is missing");
        return c;
    }

    // Behind a backslash. A single character can begin a range.
    CodeSet escape(bool* single)
    {
        *single = false;
        if (take("s")) return white_space();
        if (take("S")) return white_space().inverted();
        if (take("d")) return category("Nd");
        if (take("D")) return category("Nd").inverted();
        if (take("w")) return word_characters();
        if (take("W")) return word_characters().inverted();
        const bool negative = take("P");
        if (negative || take("p")) {
            std::string name;
            bool inverted = negative;
            if (take("{")) {
                if (take("^")) inverted = !inverted;
                while (!end() && text_[at_] != '}') name += text_[at_++];
                take("}");
            } else if (!end()) {
                name = text_[at_++];
            }
            const CodeSet set = name == "Han" || name == "Script=Han" ? han_script()
                                                                      : category(name);
            if (set.ranges.empty()) fail("the class \\p{" + printable(name) + "}");
            return inverted ? set.inverted() : set;
        }
        *single = true;
        uint32_t c;
        if (take("r")) c = '\r';
        else if (take("n")) c = '\n';
        else if (take("t")) c = '\t';
        else if (take("f")) c = '\f';
        else if (take("v")) c = '\v';
        else if (take("x")) c = hexadecimal(2);
        else if (take("u")) c = hexadecimal(4);
        else {
            const char letter = end() ? 'a' : text_[at_];
            if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
                (letter >= '0' && letter <= '9'))
                fail(std::string("\\") + letter);
            c = code();
        }
        return CodeSet().add(c, c);
    }

    CodeSet brackets(uint32_t depth) // behind the [
    {
        if (depth > 20) fail("too many brackets");
        const bool negative = take("^");
        CodeSet set;
        for (bool first = true;; first = false) {
            if (end()) fail("a ] is missing");
            if (!first && take("]")) break;
            if (take("&&")) {
                CodeSet rest;
                if (take("[")) rest = brackets(depth + 1);
                else fail("&& without a class behind it");
                set.keep(rest);
                continue;
            }
            bool single = true;
            CodeSet item;
            if (take("[:")) fail("a POSIX class");
            else if (take("[")) {
                item = brackets(depth + 1);
                single = false;
            } else if (take("\\")) item = escape(&single);
            else {
                const uint32_t c = code();
                item.add(c, c);
            }
            if (single && at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
                at_++;
                bool last_single = true;
                CodeSet last;
                if (take("\\")) last = escape(&last_single);
                else {
                    const uint32_t c = code();
                    last.add(c, c);
                }
                const uint32_t from = item.ranges[0].first, to = last.ranges[0].first;
                if (!last_single || to < from) fail("such a range");
                item = CodeSet().add(from, to);
            }
            set.add(item);
        }
        set = cased(set);
        return negative ? set.inverted() : set;
    }

    uint32_t atom(uint32_t depth)
    {
        if (take("(")) {
            const bool before = ignore_case_, not_ahead = take("?!"),
                       ahead = !not_ahead && take("?=");
            if (take("?i:")) ignore_case_ = true;
            else if (!not_ahead && !ahead && take("?") && !take(":") && !take(">"))
                fail("this kind of group");
            uint32_t inner = alternatives(depth + 1);
            ignore_case_ = before;
            if (!take(")")) fail("a ) is missing");
            if (!not_ahead && !ahead) return inner;
            CodeSet set = one_character(inner);
            Node n;
            n.kind = Node::ahead;
            n.chars = not_ahead ? set.inverted() : set;
            if (not_ahead) n.chars.ranges.push_back({end_of_text, end_of_text});
            return add(std::move(n));
        }
        if (take("[")) return add_set(brackets(0));
        if (take("\\")) {
            bool single;
            return add_set(cased(escape(&single)));
        }
        if (take(".")) return add_set(CodeSet().add('\n', '\n').inverted());
        if (take("$")) {
            Node n;
            n.kind = Node::ahead;
            if (line_ends_) n.chars.add('\n', '\n');
            n.chars.ranges.push_back({end_of_text, end_of_text});
            return add(std::move(n));
        }
        if (text_[at_] == '^' || text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')
            fail(std::string("'") + text_[at_] + "' here");
        const uint32_t c = code();
        return add_set(cased(CodeSet().add(c, c)));
    }

    CodeSet one_character(uint32_t node)
    {
        const Node& n = nodes_[node];
        if (n.kind == Node::set) return n.chars;
        if (n.kind == Node::sequence && n.parts.size() == 1) return one_character(n.parts[0]);
        if (n.kind != Node::choice) fail("lookahead of more than one character");
        CodeSet set;
        for (const uint32_t part : n.parts) set.add(one_character(part));
        return set;
    }

    uint32_t state(Pattern::State s)
    {
        if (out_.states.size() > 20000) fail("it is too large");
        out_.states.push_back(std::move(s));
        return static_cast<uint32_t>(out_.states.size() - 1);
    }
    // The state that matches the node and goes on with `next`.
    uint32_t build(uint32_t node, uint32_t next)
    {
        const Node n = nodes_[node];
        switch (n.kind) {
        case Node::empty: return next;
        case Node::set: return state({Pattern::State::character, n.chars, next, 0});
        case Node::ahead: return state({Pattern::State::ahead, n.chars, next, 0});
        case Node::sequence:
            for (size_t i = n.parts.size(); i--;) next = build(n.parts[i], next);
            return next;
        case Node::choice: {
            uint32_t first = build(n.parts.back(), next);
            for (size_t i = n.parts.size() - 1; i--;) {
                const uint32_t one = build(n.parts[i], next);
                first = state({Pattern::State::fork, {}, one, first});
            }
            return first;
        }
        case Node::repeat: {
            const auto fork = [&](uint32_t inside, uint32_t outside) {
                return Pattern::State{
                    Pattern::State::fork, {}, n.lazy ? outside : inside, n.lazy ? inside : outside};
            };
            if (n.most == endless) {
                const uint32_t loop = state({});
                const uint32_t inside = build(n.parts[0], loop);
                out_.states[loop] = fork(inside, next);
                next = loop;
            } else {
                for (uint32_t i = n.least; i < n.most; i++) {
                    const uint32_t after = next;
                    // Optional parts are nested: leaving one leaves all that follow.
                    const uint32_t inside = build(n.parts[0], i == n.least ? next : optional_);
                    optional_ = state(fork(inside, after));
                }
                if (n.most > n.least) next = optional_;
            }
            for (uint32_t i = 0; i < n.least; i++) next = build(n.parts[0], next);
            return next;
        }
        }
        return next;
    }

    std::string text_, where_;
    size_t at_ = 0;
    bool line_ends_, ignore_case_ = false;
    std::vector<Node> nodes_;
    uint32_t optional_ = 0;
    Pattern out_;
};

// `line_ends`: $ also stands before a line feed, as in Oniguruma, which Hugging Face uses.
inline Pattern parse_regex(const std::string& text, const std::string& where, bool line_ends)
{
    return RegexParser(text, where, line_ends).pattern();
}

// ---- Automata -----------------------------------------------------------------------------------

struct SplitStage {
    Pattern pattern;
    uint32_t flags = 0;             // 1: matches are dropped, 2: what lies between them is
};

class SplitCompiler {
public:
    // The chunks `split` and `classes` of a vocabulary.
    SplitCompiler(const std::vector<SplitStage>& stages, const std::string& where) : where_(where)
    {
        find_classes(stages);
        for (const SplitStage& stage : stages) compile(stage);
        std::string direct;
        for (uint32_t c = 0; c < 128; c++) direct += static_cast<char>(class_of(c));
        classes = direct + classes;
    }
    std::string split, classes;

private:
    static void word(std::string& out, uint32_t value)
    {
        unsigned char b[4];
        store_u32(b, value);
        out.append(reinterpret_cast<const char*>(b), 4);
    }

    // Characters that no set tells apart are one class.
    void find_classes(const std::vector<SplitStage>& stages)
    {
        std::vector<const CodeSet*> sets;
        std::vector<uint32_t> bounds{0};
        for (const SplitStage& stage : stages)
            for (const Pattern::State& s : stage.pattern.states) {
                if (s.kind != Pattern::State::character && s.kind != Pattern::State::ahead)
                    continue;
                sets.push_back(&s.set);
                for (const auto& [first, last] : s.set.ranges) {
                    bounds.push_back(first);
                    bounds.push_back(last + 1);
                }
            }
        std::sort(bounds.begin(), bounds.end());
        bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
        // Sets ascend, so each keeps a place that moves along with the bounds.
        std::vector<size_t> place(sets.size(), 0);
        std::map<std::vector<bool>, uint32_t> known;
        for (const uint32_t from : bounds) {
            if (from > no_character) break;
            std::vector<bool> in(sets.size());
            for (size_t i = 0; i < sets.size(); i++) {
                const auto& r = sets[i]->ranges;
                while (place[i] < r.size() && r[place[i]].second < from) place[i]++;
                in[i] = place[i] < r.size() && r[place[i]].first <= from;
            }
            const uint32_t id =
                known.emplace(std::move(in), static_cast<uint32_t>(known.size())).first->second;
            if (id > 250)
                throw Error(where_ +
                            ": the pre-tokeniser tells more than 250 classes of characters apart");
            if (starts_.empty() || starts_.back() % 256 != id) starts_.push_back(from << 8 | id);
        }
        n_classes_ = static_cast<uint32_t>(known.size()) + 1;  // and the end of the text
        for (const uint32_t w : starts_) word(classes, w);
        samples_.assign(n_classes_, end_of_text);
        for (const uint32_t w : starts_) samples_[w % 256] = w >> 8;
    }
    uint32_t class_of(uint32_t c) const
    {
        const auto after = std::upper_bound(starts_.begin(), starts_.end(), c << 8 | 255);
        return after[-1] % 256;
    }

    using Threads = std::vector<uint32_t>;
    // Adds what can be reached without a character, in order. `c`: the next one, if it is known
    // (0xffffffff: not), for lookahead.
    static void reach(const Pattern& p, uint32_t first, uint32_t c, Threads& out,
                      std::vector<bool>& seen)
    {
        std::vector<uint32_t> todo{first};
        while (!todo.empty()) {
            const uint32_t at = todo.back();
            todo.pop_back();
            if (seen[at]) continue;
            seen[at] = true;
            const Pattern::State& s = p.states[at];
            if (s.kind == Pattern::State::fork) {
                todo.push_back(s.other);
                todo.push_back(s.next);
            } else if (s.kind == Pattern::State::ahead && c != 0xffffffff) {
                if (s.set.has(c)) todo.push_back(s.next);
            } else
                out.push_back(at);
        }
    }

    void compile(const SplitStage& stage)
    {
        const Pattern& p = stage.pattern;
        std::map<Threads, uint32_t> known;
        std::vector<Threads> states{{}, {}};                   // 0: nothing can match any more
        std::vector<bool> seen(p.states.size(), false);
        reach(p, p.first, 0xffffffff, states[1], seen);
        known[states[0]] = 0;
        known[states[1]] = 1;
        std::string table;
        for (size_t at = 0; at < states.size(); at++) {
            for (uint32_t which = 0; which < n_classes_; which++) {
                const uint32_t c = samples_[which];
                // Lookahead is settled now that the next character is known.
                Threads ready, next;
                std::vector<bool> passed(p.states.size(), false), reached(p.states.size(), false);
                for (const uint32_t t : states[at]) reach(p, t, c, ready, passed);
                bool match = false;
                for (const uint32_t t : ready) {
                    const Pattern::State& s = p.states[t];
                    if (s.kind ==
                        Pattern::State::match) { // threads behind it would never have been tried
                        match = true;
                        break;
                    }
                    if (c != end_of_text && s.set.has(c))
                        reach(p, s.next, 0xffffffff, next, reached);
                }
                const auto found = known.emplace(next, static_cast<uint32_t>(states.size()));
                if (found.second) states.push_back(next);
                if (states.size() > 4000)
                    throw Error(where_ +
                                ": the pre-tokeniser's pattern needs more than 4000 states");
                const uint32_t cell = found.first->second | (match ? 0x8000u : 0u);
                table += static_cast<char>(cell & 255);
                table += static_cast<char>(cell >> 8);
            }
        }
        if (states.size() < 2)
            throw Error(where_ + ": the pre-tokeniser's pattern matches nothing");
        table.append((4 - table.size() % 4) % 4, '\0');
        word(split, stage.flags);
        word(split, static_cast<uint32_t>(2 + table.size() / 4));
        word(split, static_cast<uint32_t>(states.size()));
        word(split, n_classes_);
        split += table;
    }

    std::string where_;
    std::vector<uint32_t> starts_;  // first << 8 | class
    std::vector<uint32_t> samples_; // a character of each class
    uint32_t n_classes_ = 1;
};

}  // namespace weights
#endif
