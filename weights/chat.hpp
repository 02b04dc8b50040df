// weights/chat.hpp - a conversation as the text that a model was trained on
//
// Published models carry a chat template: a small program in Jinja. This evaluates the part of the language that such
// templates use, set up as Hugging Face transformers does it (trim_blocks, lstrip_blocks, no escaping, tojson as
// json.dumps, break and continue, {% generation %}). A template is not trusted: steps, bytes and nesting are limited,
// nothing of the machine but its clock can be reached, and what is wrong is one sentence with the line.
//
// Left out: inheritance, include and import, call and filter blocks, with, recursive loops, line statements, powers, %
// on text, filters that sort or calculate, upper and lower case beyond ASCII.
//
// Contents: interface, values, tokens, the tree, the evaluator, filters, tests, methods, well-known templates
#ifndef TRANSFORMER_WEIGHTS_CHAT_HPP
#define TRANSFORMER_WEIGHTS_CHAT_HPP

#include "json.hpp"

#include <cstdio>
#include <ctime>
#include <map>
#include <optional>

namespace weights {

// ---- Interface ------------------------------------------------------------------------------------------------------

struct ChatMessage {
    std::string role, content;                                 // role: system, user or assistant
};
struct ChatInput {
    std::vector<ChatMessage> messages;
    std::string bos_token, eos_token;                          // their text
    bool add_generation_prompt = true;                         // end where the assistant's answer begins
    std::time_t now = 0;                                       // of strftime_now; 0: the clock
    const Json* variables = nullptr;                           // an object: more variables, or others in their place
};
struct ChatLimits {
    uint64_t steps = 2000000, bytes = uint64_t{64} << 20;
};
// What the template itself refuses with raise_exception: a role that it has no place for, turns in the wrong order.
struct ChatRefusal : Error {
    using Error::Error;
};
inline std::string render_chat(std::string_view text, const ChatInput& input, const ChatLimits& limits = ChatLimits());

// A well-known template by its name ("chatml", "llama3" ...), or that of the family whose marks a text has; or nullptr.
struct ChatFamily {
    const char* name;
    const char* marks[2];                                      // both stand in a template of this family
    const char* text;
};
inline const ChatFamily* chat_family_named(std::string_view name);
inline const ChatFamily* chat_family_of(std::string_view text);
inline std::string chat_family_names();

namespace jinja {

// ---- Values ---------------------------------------------------------------------------------------------------------

struct Node;
struct Value;
using List = std::vector<Value>;
using Members = std::vector<std::pair<Value, Value>>;          // in the order in which they came

struct Value {
    enum Kind : uint8_t { undefined, none, boolean, integer, real, text, list, dict, space, macro, function };
    Kind kind = undefined;
    bool flag = false;                                         // a boolean; of a list: it is a tuple
    uint8_t depth = 0;                                         // of nested lists and dicts
    int64_t number = 0;
    double fraction = 0;
    std::shared_ptr<const std::string> string;                 // also: the name of what is undefined, of a function
    std::shared_ptr<const List> items;
    std::shared_ptr<Members> members;                          // only those of a namespace change
    const Node* body = nullptr;                                // of a macro

    bool is(Kind k) const { return kind == k; }
    bool is_number() const { return kind == boolean || kind == integer || kind == real; }
    bool is_whole() const { return kind == boolean || kind == integer; }
    const std::string& str() const { return *string; }
    int64_t whole() const { return kind == boolean ? flag : number; }
    double floating() const { return kind == real ? fraction : static_cast<double>(whole()); }
    std::string_view view() const { return string ? std::string_view(*string) : std::string_view(); }
};
inline Value of_kind(Value::Kind kind, std::string_view name = {})
{
    Value v;
    v.kind = kind;
    if (!name.empty()) v.string = std::make_shared<const std::string>(name);
    return v;
}
inline Value of_bool(bool flag)
{
    Value v = of_kind(Value::boolean);
    v.flag = flag;
    return v;
}
inline Value of_int(int64_t n)
{
    Value v = of_kind(Value::integer);
    v.number = n;
    return v;
}
inline Value of_size(size_t n) { return of_int(static_cast<int64_t>(n)); }
inline Value of_real(double x)
{
    Value v = of_kind(Value::real);
    v.fraction = x;
    return v;
}
inline Value of_text(std::string s)
{
    Value v = of_kind(Value::text);
    v.string = std::make_shared<const std::string>(std::move(s));
    return v;
}

inline const char* kind_name(const Value& v)
{
    static const char* const names[] = {"undefined", "none", "a boolean", "a number", "a number", "text",
                                        "a list", "a dict", "a namespace", "a macro", "a function"};
    return names[v.kind];
}
inline const Value* member(const Value& object, std::string_view name)
{
    if (object.members)
        for (const auto& [key, value] : *object.members)
            if (key.is(Value::text) && key.view() == name) return &value;
    return nullptr;
}
inline bool truthy(const Value& v)
{
    switch (v.kind) {
    case Value::undefined: case Value::none: return false;
    case Value::boolean: return v.flag;
    case Value::integer: return v.number != 0;
    case Value::real: return v.fraction < 0 || v.fraction > 0;
    case Value::text: return !v.str().empty();
    case Value::list: return !v.items->empty();
    case Value::dict: return !v.members->empty();
    default: return true;
    }
}

// ---- Characters -----------------------------------------------------------------------------------------------------

inline char to_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
inline char to_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }
inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

// Bytes of the character at s[i]; a byte that is not UTF-8 is a character by itself.
inline size_t character(std::string_view s, size_t i)
{
    const unsigned char c = static_cast<unsigned char>(s[i]);
    const size_t n = c < 0xc2 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 1;
    for (size_t k = 1; k < n; k++)
        if (i + k >= s.size() || (static_cast<unsigned char>(s[i + k]) & 0xc0) != 0x80) return 1;
    return n;
}
inline size_t count_characters(std::string_view s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.size(); i += character(s, i)) n++;
    return n;
}
// What Python's str.isspace() says of one character.
inline bool is_space(std::string_view c)
{
    if (c.size() == 1) return c[0] == ' ' || (c[0] >= 9 && c[0] <= 13) || (c[0] >= 28 && c[0] <= 31);
    static constexpr std::string_view wide[] = {"\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8",
                                                "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    for (const std::string_view s : wide)
        if (c == s) return true;
    const unsigned char last = static_cast<unsigned char>(c.back());
    return c.size() == 3 && c.substr(0, 2) == "\xe2\x80" && last >= 0x80 && last <= 0x8a;
}
inline std::vector<std::string_view> characters(std::string_view s)
{
    std::vector<std::string_view> out;
    for (size_t i = 0, n; i < s.size(); i += n) {
        n = character(s, i);
        out.push_back(s.substr(i, n));
    }
    return out;
}
enum : uint32_t { side_left = 1, side_right = 2 };
// Without the characters of `set` (white space if it is empty) at its ends.
inline std::string_view stripped(std::string_view s, uint32_t sides, std::string_view set = {})
{
    const auto drop = [&](std::string_view c) {
        if (set.empty()) return is_space(c);
        for (size_t i = 0; i < set.size(); i += character(set, i))
            if (set.substr(i, character(set, i)) == c) return true;
        return false;
    };
    while (sides & side_left && !s.empty() && drop(s.substr(0, character(s, 0)))) s.remove_prefix(character(s, 0));
    while (sides & side_right && !s.empty()) {
        size_t n = 1;
        for (size_t k = 2; k <= 4 && k <= s.size(); k++)
            if (character(s, s.size() - k) == k) n = k;
        if (!drop(s.substr(s.size() - n))) break;
        s.remove_suffix(n);
    }
    return s;
}

// ---- Tokens ---------------------------------------------------------------------------------------------------------

struct Token {
    enum Kind : uint8_t { data, expression, statement, close, name, number, quoted, op, end } kind = end;
    uint32_t line = 0;
    std::string text;
};

[[noreturn]] inline void fail(uint32_t line, const std::string& what)
{
    throw Error("the chat template, line " + std::to_string(line) + ": " + what);
}

// Text and what stands between {% %} and {{ }}, with white space taken away as Jinja does it.
class Lexer {
public:
    explicit Lexer(std::string_view text)
    {
        for (size_t i = 0; i < text.size(); i++) {             // line ends become \n
            if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
            s_ += text[i] == '\r' ? '\n' : text[i];
        }
        if (!s_.empty() && s_.back() == '\n') s_.pop_back();
    }
    std::vector<Token> tokens()
    {
        while (at_ < s_.size()) {
            size_t open = at_;
            while (open + 1 < s_.size() && !(s_[open] == '{' && is_one_of(s_[open + 1], "%{#"))) open++;
            if (open + 1 >= s_.size()) {
                add(Token::data, s_.substr(at_));
                break;
            }
            const char what = s_[open + 1], sign = open + 2 < s_.size() ? s_[open + 2] : '\0';
            text_before(std::string_view(s_).substr(at_, open - at_), what, sign);
            skip(open + 2 + (sign == '-' || sign == '+'));
            if (what == '#') comment();
            else if (what == '%' && word_ahead("raw")) raw();
            else inside(what == '{');
        }
        add(Token::end, "");
        return std::move(out_);
    }

private:
    static bool is_one_of(char c, const char* set) { return c && std::strchr(set, c); }
    void add(Token::Kind kind, std::string text)
    {
        if (kind != Token::data || !text.empty()) out_.push_back({kind, line_, std::move(text)});
    }
    void skip(size_t to)
    {
        for (; at_ < to; at_++) line_ += s_[at_] == '\n';
    }
    void skip_space()
    {
        size_t to = at_;
        while (to < s_.size() && is_space(std::string_view(s_).substr(to, character(s_, to)))) to += character(s_, to);
        skip(to);
    }
    void text_before(std::string_view text, char what, char sign)
    {
        if (sign == '-') {
            text = stripped(text, side_right);
        } else if (sign != '+' && what != '{') {               // blanks alone before a block on its line
            const size_t line = text.rfind('\n') + 1;
            if ((line || new_line_) && stripped(text.substr(line), side_left).empty()) text = text.substr(0, line);
        }
        add(Token::data, std::string(text));
        new_line_ = false;
    }
    // The end of a block, `mark` being two characters: +%} keeps what follows, -%} drops white space, %} a line end.
    bool closes(const char* mark, bool variable)
    {
        const std::string_view rest = std::string_view(s_).substr(at_);
        const char sign = rest.empty() ? '\0' : rest[0];
        const size_t signs = sign == '-' || (sign == '+' && !variable) ? 1 : 0;
        if (rest.substr(signs, 2) != mark) return false;
        const size_t begin = at_ + signs + 2;
        skip(begin);
        if (sign == '-') skip_space();
        else if (!signs && !variable && at_ < s_.size() && s_[at_] == '\n') skip(at_ + 1);
        new_line_ = at_ > begin && s_[at_ - 1] == '\n';
        return true;
    }
    void comment()
    {
        const uint32_t from = line_;
        while (at_ < s_.size()) {
            if (closes("#}", false)) return;
            skip(at_ + 1);
        }
        fail(from, "a comment has no end");
    }
    bool word_ahead(const std::string& word)                   // of a block's name, up to its end
    {
        size_t i = at_;
        while (i < s_.size() && is_space(std::string_view(s_).substr(i, 1))) i++;
        if (s_.compare(i, word.size(), word) != 0) return false;
        i += word.size();
        while (i < s_.size() && is_space(std::string_view(s_).substr(i, 1))) i++;
        i += i < s_.size() && is_one_of(s_[i], "+-");
        return s_.compare(i, 2, "%}") == 0;
    }
    void raw()
    {
        const uint32_t from = line_;
        skip(s_.find("raw", at_) + 3);
        skip_space();
        closes("%}", true);                                    // here alone a line end stays
        for (size_t open = at_; (open = s_.find("{%", open)) != std::string::npos; open++) {
            const std::string_view text = std::string_view(s_).substr(at_, open - at_);
            const char sign = open + 2 < s_.size() ? s_[open + 2] : '\0';
            const size_t back = at_;
            const uint32_t line = line_;
            skip(open + 2 + (sign == '-' || sign == '+'));
            if (word_ahead("endraw")) {
                text_before(text, '%', sign);
                skip(s_.find("endraw", at_) + 6);
                skip_space();
                closes("%}", false);
                return;
            }
            at_ = back, line_ = line;
        }
        fail(from, "raw has no endraw");
    }
    void inside(bool variable)
    {
        const uint32_t from = line_;
        const char* const mark = variable ? "}}" : "%}";
        size_t brackets = 0;
        add(variable ? Token::expression : Token::statement, "");
        while (true) {
            if (at_ >= s_.size()) fail(from, std::string("a ") + (variable ? "{{" : "{%") + " has no end");
            if (!brackets && closes(mark, variable)) break;
            const char c = s_[at_];
            if (is_space(std::string_view(s_).substr(at_, character(s_, at_)))) skip_space();
            else if (is_digit(c)) number();
            else if (is_word(c)) word(Token::name);
            else if (c == '"' || c == '\'') quoted();
            else {
                const std::string_view two = std::string_view(s_).substr(at_, 2);
                const bool pair = two == "==" || two == "!=" || two == "<=" || two == ">=" || two == "//";
                if (!pair && !is_one_of(c, "+-*/%~[](){}<>=.:|,"))
                    fail(line_, "the character " + printable(std::string(1, c)) + " has no meaning");
                if (is_one_of(c, "([{")) brackets++;
                else if (is_one_of(c, ")]}") && !brackets--) fail(line_, std::string("a ") + c + " closes nothing");
                add(Token::op, std::string(pair ? two : two.substr(0, 1)));
                skip(at_ + (pair ? 2 : 1));
            }
        }
        add(Token::close, "");
    }
    void word(Token::Kind kind)
    {
        size_t to = at_;
        while (to < s_.size() && is_word(s_[to])) to++;
        add(kind, s_.substr(at_, to - at_));
        skip(to);
    }
    void number()
    {
        size_t to = at_;
        const auto digits = [&] {
            while (to < s_.size() && (is_digit(s_[to]) || s_[to] == '_')) to++;
        };
        digits();
        const bool after_point = !out_.empty() && out_.back().kind == Token::op && out_.back().text == ".";
        if (!after_point && to + 1 < s_.size() && s_[to] == '.' && is_digit(s_[to + 1])) {
            to++;
            digits();
        }
        if (to + 1 < s_.size() && (s_[to] == 'e' || s_[to] == 'E')) {
            const size_t sign = s_[to + 1] == '+' || s_[to + 1] == '-' ? 2 : 1;
            if (to + sign < s_.size() && is_digit(s_[to + sign])) {
                to += sign;
                digits();
            }
        }
        std::string text = s_.substr(at_, to - at_);
        text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
        add(Token::number, std::move(text));
        skip(to);
    }
    void quoted()
    {
        const uint32_t from = line_;
        const char mark = s_[at_];
        std::string text;
        skip(at_ + 1);
        while (at_ < s_.size() && s_[at_] != mark) {
            if (s_[at_] == '\\' && at_ + 1 < s_.size()) {
                escape(text);
            } else {
                text += s_[at_];
                skip(at_ + 1);
            }
        }
        if (at_ >= s_.size()) fail(from, "a string has no end");
        skip(at_ + 1);
        out_.push_back({Token::quoted, from, std::move(text)});
    }
    void escape(std::string& text)
    {
        static constexpr char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        const char c = s_[at_ + 1];
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (digits) {
            uint32_t code = 0;
            for (size_t i = 0; i < digits; i++) {
                const char d = at_ + 2 + i < s_.size() ? to_lower(s_[at_ + 2 + i]) : '\0';
                if (!is_digit(d) && !(d >= 'a' && d <= 'f'))
                    fail(line_, std::string("\\") + c + " needs " + std::to_string(digits) + " hexadecimal digits");
                code = code << 4 | static_cast<uint32_t>(is_digit(d) ? d - '0' : d - 'a' + 10);
            }
            if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) fail(line_, "an escape is no character");
            append_utf8(text, code);
            skip(at_ + 2 + digits);
            return;
        }
        if (c >= '0' && c <= '7') {
            uint32_t code = 0;
            size_t i = at_ + 1;
            for (; i < s_.size() && i < at_ + 4 && s_[i] >= '0' && s_[i] <= '7'; i++)
                code = code * 8 + static_cast<uint32_t>(s_[i] - '0');
            append_utf8(text, code);
            skip(i);
            return;
        }
        const size_t known = std::string_view(from).find(c);
        if (known != std::string_view::npos) text += to[known];
        else if (c != '\n') text += {'\\', c};
        skip(at_ + 2);
    }

    std::string s_;
    size_t at_ = 0;
    uint32_t line_ = 1;
    bool new_line_ = true;                                     // nothing but a line end lies before at_
    std::vector<Token> out_;
};

// ---- The tree -------------------------------------------------------------------------------------------------------

struct Node {
    enum Kind : uint8_t {
        literal, name, list, tuple, dict, attribute, item, slice, call, filter, test, negative, positive, negation,
        binary, concat, compare, both, either, choice,         // expressions
        text, print, branch, loop, set, macro, block, stop, next // statements
    } kind = literal;
    uint32_t line = 0;
    std::string word;                                          // a name, an operator
    Value value;
    std::vector<Node*> nodes;                                  // operands, arguments, conditions; null: absent
    std::vector<std::pair<std::string, Node*>> named;          // arguments with a name, parameters with their defaults
    std::vector<std::string> words;                            // operators of a comparison, names that are set
    std::vector<std::vector<Node*>> bodies;                    // of a branch one for each condition, then that of else
};

class Parser {
public:
    explicit Parser(std::string_view text)
    {
        if (text.size() > 1u << 20)
            throw Error("the chat template has " + std::to_string(text.size()) + " bytes, more than a template needs");
        tokens_ = Lexer(text).tokens();
    }
    std::vector<Node*> parse(std::vector<std::unique_ptr<Node>>* store)
    {
        store_ = store;
        std::string end;
        return body({}, &end);
    }

private:
    static constexpr uint32_t max_depth = 100;
    struct Level {                                             // counts nested calls
        Parser& p;
        explicit Level(Parser& parser) : p(parser)
        {
            if (++p.depth_ > max_depth) fail(p.peek().line, "it is nested too deeply");
        }
        ~Level() { p.depth_--; }
    };

    const Token& peek(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
    bool is(Token::Kind kind, std::string_view text) const { return peek().kind == kind && peek().text == text; }
    bool is_op(std::string_view text) const { return is(Token::op, text); }
    bool is_name(std::string_view text) const { return is(Token::name, text); }
    bool take(Token::Kind kind, std::string_view text)
    {
        if (!is(kind, text)) return false;
        at_++;
        return true;
    }
    bool take_op(std::string_view text) { return take(Token::op, text); }
    bool take_name(std::string_view text) { return take(Token::name, text); }
    [[noreturn]] void expected(const std::string& what) const
    {
        const Token& t = peek();
        static const char* const places[] = {"text", "{{", "{%", "the end of the block", "", "", "a string", "",
                                             "the end"};
        const std::string place = t.text.empty() || t.kind == Token::data ? places[t.kind] : printable(t.text, 30);
        fail(t.line, what + " is expected before " + place);
    }
    void need_op(const char* text)
    {
        if (!take_op(text)) expected(text);
    }
    void need_close()
    {
        if (peek().kind != Token::close) expected("the end of the block");
        at_++;
    }
    std::string need_name()
    {
        if (peek().kind != Token::name) expected("a name");
        return tokens_[at_++].text;
    }
    Node* make(Node::Kind kind, std::string word = "")
    {
        store_->push_back(std::make_unique<Node>());
        Node* const n = store_->back().get();
        n->kind = kind;
        n->line = peek().line;
        n->word = std::move(word);
        return n;
    }
    Node* make(Node::Kind kind, std::string word, std::vector<Node*> nodes)
    {
        Node* const n = make(kind, std::move(word));
        n->nodes = std::move(nodes);
        return n;
    }

    // Statements up to a block that begins with one of `ends`, which is *end afterwards; at the top up to the end.
    std::vector<Node*> body(const std::vector<std::string>& ends, std::string* end)
    {
        const Level level(*this);
        std::vector<Node*> out;
        while (true) {
            const Token& t = peek();
            if (t.kind == Token::end) {
                if (!ends.empty()) fail(t.line, "{% " + ends.back() + " %} is missing");
                return out;
            }
            at_++;
            if (t.kind == Token::data) {
                out.push_back(make(Node::text));
                out.back()->value = of_text(t.text);
            } else if (t.kind == Token::expression) {
                Node* const n = make(Node::print);
                n->nodes.push_back(expression_list());
                need_close();
                out.push_back(n);
            } else {
                const std::string word = need_name();
                if (std::find(ends.begin(), ends.end(), word) != ends.end()) {
                    *end = word;
                    return out;
                }
                out.push_back(statement(word));
            }
        }
    }
    std::vector<Node*> body_of(const std::string& end_word)
    {
        need_close();
        std::string end;
        std::vector<Node*> out = body({end_word}, &end);
        if (end_word == "endmacro" && peek().kind == Token::name) at_++; // {% endmacro name %}
        need_close();
        return out;
    }

    Node* statement(const std::string& word)
    {
        if (word == "if") return branch();
        if (word == "for") return loop();
        if (word == "set") return set();
        if (word == "macro") return macro();
        if (word == "break" || word == "continue") {
            if (!loops_) fail(peek().line, word + " stands outside a loop");
            need_close();
            return make(word == "break" ? Node::stop : Node::next);
        }
        if (word == "generation") {
            Node* const n = make(Node::block);
            n->bodies.push_back(body_of("endgeneration"));
            return n;
        }
        fail(peek().line, "{% " + printable(word, 30) + " %} is not supported");
    }

    Node* branch()
    {
        Node* const n = make(Node::branch);
        std::string end;
        do {
            n->nodes.push_back(expression());
            need_close();
            n->bodies.push_back(body({"elif", "else", "endif"}, &end));
        } while (end == "elif");
        if (end == "else") n->bodies.push_back(body_of("endif"));
        else need_close();
        return n;
    }
    std::vector<std::string> targets()
    {
        const bool inner = take_op("(");
        std::vector<std::string> names{need_name()};
        while (take_op(",")) names.push_back(need_name());
        if (inner) need_op(")");
        return names;
    }
    Node* loop()
    {
        Node* const n = make(Node::loop);
        n->words = targets();
        if (!take_name("in")) expected("in");
        n->nodes.push_back(either());
        if (is_op(",")) {
            Node* const list = make(Node::tuple, "", n->nodes);
            while (take_op(",")) list->nodes.push_back(either());
            n->nodes = {list};
        }
        n->nodes.push_back(take_name("if") ? expression() : nullptr);
        if (is_name("recursive")) fail(peek().line, "recursive loops are not supported");
        need_close();
        std::string end;
        loops_++;
        n->bodies.push_back(body({"else", "endfor"}, &end));
        loops_--;
        n->bodies.push_back(end == "else" ? body_of("endfor") : std::vector<Node*>());
        if (end != "else") need_close();
        return n;
    }
    Node* set()
    {
        Node* const n = make(Node::set);
        n->words = targets();
        if (n->words.size() == 1 && take_op(".")) n->word = need_name();  // of a namespace
        if (take_op("=")) {
            n->nodes.push_back(expression_list());
            need_close();
            return n;
        }
        Node* const block = make(Node::block);
        n->nodes.push_back(block);
        while (take_op("|")) n->nodes[0] = filtered(n->nodes[0], need_name());
        block->bodies.push_back(body_of("endset"));
        return n;
    }
    Node* macro()
    {
        Node* const n = make(Node::macro, need_name());
        need_op("(");
        while (!is_op(")")) {
            std::string name = need_name();
            n->named.emplace_back(std::move(name), take_op("=") ? expression() : nullptr);
            if (!take_op(",")) break;
        }
        need_op(")");
        const uint32_t loops = std::exchange(loops_, 0u);
        n->bodies.push_back(body_of("endmacro"));
        loops_ = loops;
        return n;
    }

    // Expressions, from the loosest binding to the tightest.
    Node* expression_list()                                    // a, b is a tuple
    {
        Node* const first = expression();
        if (!is_op(",")) return first;
        Node* const n = make(Node::tuple, "", {first});
        while (take_op(","))
            if (peek().kind != Token::close && !is_op(")")) n->nodes.push_back(expression());
        return n;
    }
    Node* expression()                                         // x if c else y
    {
        const Level level(*this);
        Node* n = either();
        while (take_name("if")) {
            Node* const condition = either();
            n = make(Node::choice, "", {condition, n, take_name("else") ? expression() : nullptr});
        }
        return n;
    }
    Node* either()
    {
        Node* n = both();
        if (!is_name("or")) return n;
        n = make(Node::either, "", {n});
        while (take_name("or")) n->nodes.push_back(both());
        return n;
    }
    Node* both()
    {
        Node* n = negation();
        if (!is_name("and")) return n;
        n = make(Node::both, "", {n});
        while (take_name("and")) n->nodes.push_back(negation());
        return n;
    }
    Node* negation()
    {
        const Level level(*this);
        return take_name("not") ? make(Node::negation, "", {negation()}) : comparison();
    }
    Node* comparison()
    {
        Node* const first = sum();
        Node* n = nullptr;
        while (true) {
            std::string op;
            for (const char* known : {"==", "!=", "<=", ">=", "<", ">"})
                if (op.empty() && take_op(known)) op = known;
            if (op.empty() && take_name("in")) op = "in";
            if (op.empty() && is_name("not") && peek(1).kind == Token::name && peek(1).text == "in") {
                at_ += 2;
                op = "not in";
            }
            if (op.empty()) return n ? n : first;
            if (!n) n = make(Node::compare, "", {first});
            n->words.push_back(op);
            n->nodes.push_back(sum());
        }
    }
    Node* sum() { return chain({"+", "-"}, &Parser::joined); }
    Node* product() { return chain({"*", "//", "/", "%"}, &Parser::filtered_unary); }
    Node* chain(std::initializer_list<const char*> ops, Node* (Parser::*inner)())
    {
        Node* n = (this->*inner)();
        for (uint32_t length = 0;; length++) {
            std::string op;
            for (const char* known : ops)
                if (op.empty() && take_op(known)) op = known;
            if (op.empty()) return n;
            if (length == max_depth) fail(peek().line, "it is nested too deeply");
            Node* const right = (this->*inner)();
            n = make(Node::binary, op, {n, right});
        }
    }
    Node* joined()                                             // a ~ b
    {
        Node* n = product();
        if (!is_op("~")) return n;
        n = make(Node::concat, "", {n});
        while (take_op("~")) n->nodes.push_back(product());
        return n;
    }
    Node* filtered_unary() { return unary(true); }
    Node* unary(bool filters)
    {
        const Level level(*this);
        Node* n;
        if (take_op("-")) n = make(Node::negative, "", {unary(false)});
        else if (take_op("+")) n = make(Node::positive, "", {unary(false)});
        else n = postfix(primary());
        return filters ? with_filters(n) : n;
    }
    Node* primary()
    {
        const Token t = peek();
        if (t.kind == Token::name) {
            at_++;
            const std::string& w = t.text;
            Node* const n = make(Node::literal);
            if (w == "true" || w == "True") n->value = of_bool(true);
            else if (w == "false" || w == "False") n->value = of_bool(false);
            else if (w == "none" || w == "None") n->value = of_kind(Value::none);
            else {
                n->kind = Node::name;
                n->word = w;
            }
            return n;
        }
        if (t.kind == Token::quoted) {
            std::string text;
            while (peek().kind == Token::quoted) text += tokens_[at_++].text;
            Node* const n = make(Node::literal);
            n->value = of_text(std::move(text));
            return n;
        }
        if (t.kind == Token::number) {
            at_++;
            Node* const n = make(Node::literal);
            n->value = number(t);
            return n;
        }
        if (take_op("(")) {
            if (take_op(")")) return make(Node::tuple);
            Node* const n = expression_list();
            need_op(")");
            return n;
        }
        if (take_op("[")) return members(make(Node::list), "]");
        if (take_op("{")) return members(make(Node::dict), "}");
        expected("a value");
    }
    Node* members(Node* n, const char* end)
    {
        while (!is_op(end)) {
            n->nodes.push_back(expression());
            if (n->kind == Node::dict) {
                need_op(":");
                n->nodes.push_back(expression());
            }
            if (!take_op(",")) break;
        }
        need_op(end);
        return n;
    }
    static Value number(const Token& t)
    {
        if (t.text.find_first_of(".eE") == std::string::npos) {
            if (t.text.size() > 18) fail(t.line, "the number " + printable(t.text, 30) + " is too large");
            int64_t n = 0;
            for (const char c : t.text) n = n * 10 + (c - '0');
            return of_int(n);
        }
        std::istringstream stream(t.text);
        stream.imbue(std::locale::classic());
        double x = 0;
        stream >> x;
        return of_real(x);
    }
    Node* postfix(Node* n)
    {
        for (uint32_t length = 0;; length++) {
            if (length == max_depth) fail(peek().line, "it is nested too deeply");
            if (take_op(".")) {
                if (peek().kind == Token::number) {
                    const Token t = tokens_[at_++];
                    Node* const index = make(Node::literal);
                    index->value = number(t);
                    n = make(Node::item, "", {n, index});
                } else {
                    n = make(Node::attribute, need_name(), {n});
                }
            } else if (take_op("[")) {
                n = subscript(n);
            } else if (is_op("(")) {
                Node* const call = make(Node::call, "", {n});
                arguments(call);
                n = call;
            } else {
                return n;
            }
        }
    }
    Node* subscript(Node* n)
    {
        Node* part[3] = {};
        bool colon = false;
        for (size_t i = 0; i < 3; i++) {
            if (!is_op(":") && !is_op("]")) part[i] = expression();
            if (!take_op(":")) break;
            colon = true;
        }
        if (!is_op("]") || (!colon && !part[0])) expected(part[0] || colon ? "]" : "an index");
        at_++;
        return colon ? make(Node::slice, "", {n, part[0], part[1], part[2]}) : make(Node::item, "", {n, part[0]});
    }
    void arguments(Node* call)                                 // behind what the call already has
    {
        need_op("(");
        while (!is_op(")")) {
            if (is_op("*") || is_op("**")) fail(peek().line, "* before an argument is not supported");
            if (peek().kind == Token::name && peek(1).kind == Token::op && peek(1).text == "=") {
                std::string name = need_name();
                at_++;
                call->named.emplace_back(std::move(name), expression());
            } else {
                call->nodes.push_back(expression());
            }
            if (!take_op(",")) break;
        }
        need_op(")");
    }
    Node* filtered(Node* n, const std::string& name)
    {
        Node* const filter = make(Node::filter, name, {n});
        if (is_op("(")) arguments(filter);
        return filter;
    }
    Node* with_filters(Node* n)
    {
        for (uint32_t length = 0;; length++) {
            if (length == max_depth) fail(peek().line, "it is nested too deeply");
            if (take_op("|")) {
                n = filtered(n, need_name());
            } else if (take_name("is")) {
                const bool negated = take_name("not");
                Node* const test = make(Node::test, need_name(), {n});
                const Token& t = peek();
                static constexpr std::string_view others[] = {"else", "or", "and", "is", "if", "in", "not"};
                const bool other = std::find(std::begin(others), std::end(others), t.text) != std::end(others);
                const bool value = t.kind == Token::name ? !other : t.kind == Token::quoted || t.kind == Token::number;
                if (is_op("(")) arguments(test);
                else if (value || is_op("[") || is_op("{")) test->nodes.push_back(postfix(primary()));
                n = negated ? make(Node::negation, "", {test}) : test;
            } else if (is_op("(") && n->kind == Node::filter) {
                Node* const call = make(Node::call, "", {n});
                arguments(call);
                n = call;
            } else {
                return n;
            }
        }
    }

    std::vector<Token> tokens_;
    size_t at_ = 0;
    uint32_t depth_ = 0, loops_ = 0;
    std::vector<std::unique_ptr<Node>>* store_ = nullptr;
};

// ---- The evaluator --------------------------------------------------------------------------------------------------

struct Scope {
    Scope* outer = nullptr;
    std::map<std::string, Value, std::less<>> names;
};

class Evaluator {
public:
    Evaluator(const ChatInput& input, const ChatLimits& limits)
        : input_(input), steps_(limits.steps), bytes_(limits.bytes)
    {
        List messages;
        for (const ChatMessage& m : input.messages)
            messages.push_back(object({{of_text("role"), of_text(m.role)}, {of_text("content"), of_text(m.content)}}));
        auto& names = globals_.names;
        names["messages"] = of_list(std::move(messages));
        names["bos_token"] = of_text(input.bos_token);
        names["eos_token"] = of_text(input.eos_token);
        names["add_generation_prompt"] = of_bool(input.add_generation_prompt);
        names["tools"] = names["documents"] = of_kind(Value::none);
        if (input.variables)
            for (const Json::Member& m : input.variables->members) names[m.key] = of_json(m.value);
    }
    std::string run(const std::vector<Node*>& program)
    {
        std::string out;
        scope_ = &globals_;
        execute(program, out);
        return out;
    }

private:
    enum Flow : uint8_t { on, stopped, skipped };
    static constexpr uint32_t max_depth = 250, max_nesting = 60;
    using Args = std::vector<Value>;
    using Named = std::vector<std::pair<std::string, Value>>;

    [[noreturn]] void wrong(const std::string& what) const { fail(line_, what); }
    void step(uint64_t n = 1)
    {
        if (n > steps_) wrong("it takes too many steps");
        steps_ -= n;
    }
    void charge(uint64_t n)
    {
        if (n > bytes_) wrong("it makes too much text");
        bytes_ -= n;
    }
    void append(std::string& out, std::string_view s)
    {
        charge(s.size());
        step(1 + s.size() / 256);
        out += s;
    }
    Value text(std::string s)
    {
        charge(s.size());
        return of_text(std::move(s));
    }
    Value text(std::string_view s) { return text(std::string(s)); }
    struct Level {
        Evaluator& e;
        explicit Level(Evaluator& evaluator) : e(evaluator)
        {
            if (++e.depth_ > max_depth) e.wrong("it is nested too deeply");
        }
        ~Level() { e.depth_--; }
    };

    // Lists and dicts. They never change, and a namespace cannot be put into anything: there are no cycles.
    uint8_t deeper(uint32_t depth, const Value& v)
    {
        if (v.is(Value::space)) wrong("a namespace cannot be put into a list, a dict or a namespace");
        if (v.depth >= max_nesting) wrong("lists are nested too deeply");
        return static_cast<uint8_t>(std::max<uint32_t>(depth, v.depth + 1u));
    }
    Value of_list(List items, bool tuple = false)
    {
        Value v = of_kind(Value::list);
        charge(items.size() * sizeof(Value));
        step(items.size());
        for (const Value& item : items) v.depth = deeper(v.depth, item);
        v.flag = tuple;
        v.items = std::make_shared<const List>(std::move(items));
        return v;
    }
    Value object(Members members, Value::Kind kind = Value::dict)
    {
        Value v = of_kind(kind);
        charge(members.size() * 2 * sizeof(Value));
        step(members.size());
        for (const auto& [key, value] : members) v.depth = deeper(deeper(v.depth, key), value);
        v.members = std::make_shared<Members>(std::move(members));
        return v;
    }
    Value of_json(const Json& json)
    {
        switch (json.kind) {
        case Json::null: return of_kind(Value::none);
        case Json::boolean: return of_bool(json.flag);
        case Json::number: return json.exact ? of_int(json.integer) : of_real(json.value);
        case Json::text: return of_text(json.string);
        case Json::list: {
            List items;
            for (const Json& item : json.items) items.push_back(of_json(item));
            return of_list(std::move(items));
        }
        default: {
            Members members;
            for (const Json::Member& m : json.members) members.emplace_back(of_text(m.key), of_json(m.value));
            return object(std::move(members));
        }
        }
    }

    // What a loop goes through.
    std::shared_ptr<const List> elements(const Value& v)
    {
        if (v.is(Value::list)) return v.items;
        List out;
        if (v.is(Value::dict)) {
            for (const auto& [key, value] : *v.members) out.push_back(key);
        } else if (v.is(Value::text)) {
            charge(v.str().size() * sizeof(Value));
            for (const std::string_view c : characters(v.str())) out.push_back(of_text(std::string(c)));
        } else if (!v.is(Value::undefined)) {
            wrong(std::string(kind_name(v)) + " has no elements to go through");
        }
        return of_list(std::move(out)).items;
    }

    bool equal(const Value& a, const Value& b)
    {
        const Level level(*this);
        step();
        if (a.is_number() && b.is_number()) {
            if (a.is_whole() && b.is_whole()) return a.whole() == b.whole();
            return !(a.floating() < b.floating()) && !(a.floating() > b.floating());
        }
        if (a.kind != b.kind) return false;
        switch (a.kind) {
        case Value::text: step(a.str().size() / 256); return a.str() == b.str();
        case Value::list:
            if (a.items->size() != b.items->size() || a.flag != b.flag) return false;
            for (size_t i = 0; i < a.items->size(); i++)
                if (!equal((*a.items)[i], (*b.items)[i])) return false;
            return true;
        case Value::dict:
            if (a.members->size() != b.members->size()) return false;
            for (const auto& [key, value] : *a.members) {
                const Value* const other = find(b, key);
                if (!other || !equal(value, *other)) return false;
            }
            return true;
        case Value::space: return a.members == b.members;
        case Value::macro: return a.body == b.body;
        case Value::function: return a.view() == b.view();
        default: return true;
        }
    }
    bool less(const Value& a, const Value& b)
    {
        const Level level(*this);
        step();
        if (a.is_whole() && b.is_whole()) return a.whole() < b.whole();
        if (a.is_number() && b.is_number()) return a.floating() < b.floating();
        if (a.is(Value::text) && b.is(Value::text)) return a.str() < b.str();
        if (!a.is(Value::list) || !b.is(Value::list))
            wrong(std::string(kind_name(a)) + " and " + kind_name(b) + " have no order");
        const size_t n = std::min(a.items->size(), b.items->size());
        for (size_t i = 0; i < n; i++)
            if (!equal((*a.items)[i], (*b.items)[i])) return less((*a.items)[i], (*b.items)[i]);
        return a.items->size() < b.items->size();
    }
    const Value* find(const Value& object, const Value& key)
    {
        if (object.members)
            for (const auto& [name, value] : *object.members)
                if (equal(name, key)) return &value;
        return nullptr;
    }
    bool contains(const Value& all, const Value& one)
    {
        if (all.is(Value::text)) {
            if (!one.is(Value::text)) wrong(std::string(kind_name(one)) + " cannot be looked for in text");
            step(all.str().size() / 64);
            return all.str().find(one.str()) != std::string::npos;
        }
        if (all.is(Value::dict)) return find(all, one) != nullptr;
        const std::shared_ptr<const List> parts = elements(all);
        for (const Value& item : *parts)
            if (equal(item, one)) return true;
        return false;
    }

    // As str() and repr() of Python write it.
    static std::string real_text(double x)
    {
        if (std::isnan(x)) return "nan";
        if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
        char piece[40];
        for (int digits = 1; digits <= 17; digits++) {
            std::snprintf(piece, sizeof piece, "%.*e", digits - 1, x);
            if (std::strtod(piece, nullptr) <= x && std::strtod(piece, nullptr) >= x) break;
        }
        std::string s = piece;
        const size_t e = s.find('e');
        const int exponent = std::atoi(s.c_str() + e + 1);
        const bool negative = s[0] == '-';
        std::string digits = s.substr(negative, e - negative);
        digits.erase(std::remove_if(digits.begin(), digits.end(), [](char c) { return !is_digit(c); }), digits.end());
        if (exponent < -4 || exponent >= 16) {
            std::string out = digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "") + "e";
            std::snprintf(piece, sizeof piece, "%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
            return (negative ? "-" : "") + out + piece;
        }
        const size_t before = static_cast<size_t>(std::max(exponent, -1) + 1);  // digits before the point
        if (exponent < 0) digits.insert(0, static_cast<size_t>(-1 - exponent), '0');
        if (digits.size() < before) digits.append(before - digits.size(), '0');
        const std::string after = digits.substr(before);
        return (negative ? "-" : "") + (before ? digits.substr(0, before) : "0") + "." + (after.empty() ? "0" : after);
    }
    void write_plain(std::string& out, const Value& v)         // str(v)
    {
        if (v.is(Value::text)) return append(out, v.str());
        if (!v.is(Value::undefined)) write(out, v, false, -1, 0);
    }
    std::string plain(const Value& v)
    {
        std::string out;
        write_plain(out, v);
        return out;
    }
    void write_quoted(std::string& out, const std::string& s, bool json)
    {
        const char mark = json || (s.find('\'') != std::string::npos && s.find('"') == std::string::npos) ? '"' : '\'';
        std::string quoted(1, mark);
        for (const char c : s) {
            const uint32_t code = static_cast<unsigned char>(c);
            static constexpr char from[] = "\n\r\t\b\f", to[] = "nrtbf";
            const char* const known = c ? std::strchr(from, c) : nullptr;
            if (c == mark || c == '\\') quoted += {'\\', c};
            else if (known && (json || known - from < 3)) quoted += {'\\', to[known - from]};
            else if (code < 32 || (code == 127 && !json)) {
                char escape[8];
                std::snprintf(escape, sizeof escape, json ? "\\u%04x" : "\\x%02x", code);
                quoted += escape;
            } else quoted += c;
        }
        append(out, quoted + mark);
    }
    // repr(v) or JSON; `indent` below 0: all in one line.
    void write(std::string& out, const Value& v, bool json, int64_t indent, int64_t level)
    {
        const Level nested(*this);
        const auto line = [&](int64_t n) {
            if (indent >= 0) append(out, "\n" + std::string(static_cast<size_t>(indent * n), ' '));
        };
        switch (v.kind) {
        case Value::undefined:
            if (json) wrong("what is undefined cannot be written as JSON");
            return append(out, "Undefined");
        case Value::none: return append(out, json ? "null" : "None");
        case Value::boolean: return append(out, json ? v.flag ? "true" : "false" : v.flag ? "True" : "False");
        case Value::integer: return append(out, std::to_string(v.number));
        case Value::real: return append(out, real_text(v.fraction));
        case Value::text: return write_quoted(out, v.str(), json);
        case Value::list: case Value::dict: {
            const bool dict = v.is(Value::dict), tuple = !dict && v.flag && !json;
            const size_t n = dict ? v.members->size() : v.items->size();
            append(out, dict ? "{" : tuple ? "(" : "[");
            for (size_t i = 0; i < n; i++) {
                if (i) append(out, indent >= 0 ? "," : ", ");
                line(level + 1);
                if (dict) {
                    const Value& key = (*v.members)[i].first;
                    if (json && !key.is(Value::text)) write_quoted(out, plain(key), true);
                    else write(out, key, json, indent, level + 1);
                    append(out, ": ");
                }
                write(out, dict ? (*v.members)[i].second : (*v.items)[i], json, indent, level + 1);
            }
            if (n) line(level);
            return append(out, dict ? "}" : tuple ? n == 1 ? ",)" : ")" : "]");
        }
        default:
            if (json) wrong(std::string(kind_name(v)) + " cannot be written as JSON");
            return append(out, v.is(Value::space) ? "<Namespace>" : v.is(Value::macro) ? "<Macro>" : "<function>");
        }
    }

    // Names
    static bool is_function(std::string_view name)
    {
        static constexpr std::string_view all[] = {"range", "dict", "namespace", "raise_exception", "strftime_now"};
        return std::find(std::begin(all), std::end(all), name) != std::end(all);
    }
    Value look_up(const std::string& name)
    {
        for (Scope* s = scope_; s; s = s->outer)
            if (const auto found = s->names.find(name); found != s->names.end()) return found->second;
        return of_kind(is_function(name) ? Value::function : Value::undefined, name);
    }
    void require_defined(const Value& v) const
    {
        if (v.is(Value::undefined)) wrong("'" + printable(std::string(v.view())) + "' is undefined");
    }
    Value attribute(const Value& object, const std::string& name)
    {
        require_defined(object);
        const Value* const found = member(object, name);
        return found ? *found : of_kind(Value::undefined, name);
    }
    Value element(const Value& object, const Value& key)
    {
        require_defined(object);
        if (object.members) {
            const Value* const found = find(object, key);
            return found ? *found : of_kind(Value::undefined, plain(key));
        }
        if (!key.is_whole()) return of_kind(Value::undefined, plain(key));
        const bool is_text = object.is(Value::text);
        const std::vector<std::string_view> all = is_text ? characters(object.str()) : std::vector<std::string_view>();
        if (!is_text && !object.is(Value::list)) return of_kind(Value::undefined, "element");
        step(1 + all.size() / 64);
        const int64_t n = static_cast<int64_t>(is_text ? all.size() : object.items->size());
        const int64_t i = key.whole() + (key.whole() < 0 ? n : 0);
        if (i < 0 || i >= n) return of_kind(Value::undefined, "element " + std::to_string(key.whole()));
        return is_text ? text(all[static_cast<size_t>(i)]) : (*object.items)[static_cast<size_t>(i)];
    }
    Value sliced(const Value& object, const Node& node)
    {
        require_defined(object);
        std::optional<int64_t> part[3];
        for (size_t i = 0; i < 3; i++) {
            if (!node.nodes[i + 1]) continue;
            const Value v = evaluate(*node.nodes[i + 1]);
            if (v.is(Value::none)) continue;
            if (!v.is_whole()) wrong("a slice needs whole numbers");
            part[i] = v.whole();
        }
        const int64_t by = part[2].value_or(1);
        if (!by) wrong("the step of a slice is 0");
        if (!object.is(Value::text) && !object.is(Value::list)) return of_kind(Value::undefined, "slice");
        const bool is_text = object.is(Value::text);
        const std::vector<std::string_view> all = is_text ? characters(object.str()) : std::vector<std::string_view>();
        const int64_t n = static_cast<int64_t>(is_text ? all.size() : object.items->size());
        const auto place = [&](std::optional<int64_t> at, int64_t usual) {
            if (!at) return usual;
            const int64_t i = *at < 0 ? std::max(*at, -n - 1) + n : std::min(*at, n);
            return std::clamp(i, by < 0 ? int64_t{-1} : int64_t{0}, by < 0 ? n - 1 : n);
        };
        const int64_t from = place(part[0], by < 0 ? n - 1 : 0), to = place(part[1], by < 0 ? -1 : n);
        const int64_t stride = std::clamp(by, -n - 1, n + 1);
        std::string out;
        List items;
        step(static_cast<uint64_t>(n) / 16);
        for (int64_t i = from; stride < 0 ? i > to : i < to; i += stride) {
            if (is_text) out += all[static_cast<size_t>(i)];
            else items.push_back((*object.items)[static_cast<size_t>(i)]);
        }
        return is_text ? text(std::move(out)) : of_list(std::move(items), object.flag);
    }

    // Statements
    Flow execute(const std::vector<Node*>& body, std::string& out)
    {
        const Level level(*this);
        for (const Node* n : body) {
            step();
            line_ = n->line;
            Flow flow = on;
            switch (n->kind) {
            case Node::text: append(out, n->value.str()); break;
            case Node::print: write_plain(out, evaluate(*n->nodes[0])); break;
            case Node::branch: flow = branch(*n, out); break;
            case Node::loop: flow = loop(*n, out); break;
            case Node::set: set(*n); break;
            case Node::macro: {
                Value v = of_kind(Value::macro, n->word);
                v.body = n;
                scope_->names[n->word] = std::move(v);
                break;
            }
            case Node::block: flow = execute(n->bodies[0], out); break;
            case Node::stop: flow = stopped; break;
            default: flow = skipped; break;
            }
            if (flow != on) return flow;
        }
        return on;
    }
    Flow branch(const Node& n, std::string& out)
    {
        for (size_t i = 0; i < n.bodies.size(); i++)
            if (i >= n.nodes.size() || truthy(evaluate(*n.nodes[i]))) return execute(n.bodies[i], out);
        return on;
    }
    struct Entered {                                           // a scope for as long as this lives
        Evaluator& e;
        Scope* before;
        Entered(Evaluator& evaluator, Scope* scope) : e(evaluator), before(std::exchange(evaluator.scope_, scope)) {}
        ~Entered() { e.scope_ = before; }
    };
    void bind(const std::vector<std::string>& names, const Value& v)
    {
        if (names.size() == 1) {
            scope_->names[names[0]] = v;
            return;
        }
        const std::shared_ptr<const List> parts = elements(v);
        if (parts->size() != names.size())
            wrong(std::to_string(names.size()) + " names stand for " + std::to_string(parts->size()) + " values");
        for (size_t i = 0; i < names.size(); i++) scope_->names[names[i]] = (*parts)[i];
    }
    Flow loop(const Node& n, std::string& out)
    {
        const Value over = evaluate(*n.nodes[0]);
        std::shared_ptr<const List> items = elements(over);
        if (n.nodes[1]) {                                      // only those that pass the condition
            List kept;
            for (const Value& item : *items) {
                Scope inner;
                inner.outer = scope_;
                const Entered entered(*this, &inner);
                bind(n.words, item);
                if (truthy(evaluate(*n.nodes[1]))) kept.push_back(item);
            }
            items = of_list(std::move(kept)).items;
        }
        if (items->empty()) return execute(n.bodies[1], out);
        const size_t count = items->size();
        for (size_t i = 0; i < count; i++) {
            Scope inner;
            inner.outer = scope_;
            const Entered entered(*this, &inner);
            const auto neighbour = [&](bool there, size_t k) {
                return there && (*items)[k].depth < max_nesting ? (*items)[k] : of_kind(Value::undefined, "item");
            };
            Members about;
            const auto add = [&](const char* name, Value v) { about.emplace_back(of_text(name), std::move(v)); };
            add("index", of_size(i + 1));
            add("index0", of_size(i));
            add("revindex", of_size(count - i));
            add("revindex0", of_size(count - i - 1));
            add("first", of_bool(i == 0));
            add("last", of_bool(i + 1 == count));
            add("length", of_size(count));
            add("previtem", neighbour(i > 0, i - 1));
            add("nextitem", neighbour(i + 1 < count, i + 1));
            inner.names["loop"] = object(std::move(about));
            bind(n.words, (*items)[i]);
            if (execute(n.bodies[0], out) == stopped) break;
        }
        return on;
    }
    void set(const Node& n)
    {
        Value v = evaluate(*n.nodes[0]);
        if (n.word.empty()) return bind(n.words, v);
        Value space = look_up(n.words[0]);
        if (!space.is(Value::space))
            wrong("'" + printable(n.words[0]) + "' is no namespace, and only the members of one can be set");
        deeper(0, v);
        for (auto& [key, value] : *space.members)
            if (key.view() == n.word) {
                value = std::move(v);
                return;
            }
        charge(2 * sizeof(Value));
        space.members->emplace_back(of_text(n.word), std::move(v));
    }

    // Expressions
    Value evaluate(const Node& n)
    {
        const Level level(*this);
        step();
        line_ = n.line;
        switch (n.kind) {
        case Node::literal: return n.value;
        case Node::name: return look_up(n.word);
        case Node::attribute: return attribute(evaluate(*n.nodes[0]), n.word);
        case Node::item: return element(evaluate(*n.nodes[0]), evaluate(*n.nodes[1]));
        case Node::slice: return sliced(evaluate(*n.nodes[0]), n);
        case Node::list: case Node::tuple: return of_list(all_of(n.nodes, 0), n.kind == Node::tuple);
        case Node::dict: return dict(n);
        case Node::call: return call(n);
        case Node::filter: return filtered(n);
        case Node::test: return of_bool(tested(n.word, evaluate(*n.nodes[0]), all_of(n.nodes, 1)));
        case Node::negation: return of_bool(!truthy(evaluate(*n.nodes[0])));
        case Node::negative: case Node::positive: return signed_number(n);
        case Node::binary: return binary(n.word, evaluate(*n.nodes[0]), evaluate(*n.nodes[1]));
        case Node::concat: return joined(n);
        case Node::compare: return compared(n);
        case Node::both: case Node::either: return logical(n);
        case Node::choice:
            if (truthy(evaluate(*n.nodes[0]))) return evaluate(*n.nodes[1]);
            return n.nodes[2] ? evaluate(*n.nodes[2]) : of_kind(Value::undefined, "else");
        case Node::block: return captured(n);
        default: wrong("this is no expression");
        }
    }
    List all_of(const std::vector<Node*>& nodes, size_t from)
    {
        List out;
        for (size_t i = from; i < nodes.size(); i++) out.push_back(evaluate(*nodes[i]));
        return out;
    }
    Value captured(const Node& n)
    {
        std::string out;
        execute(n.bodies[0], out);
        return of_text(std::move(out));
    }
    Value dict(const Node& n)
    {
        Members members;
        for (size_t i = 0; i < n.nodes.size(); i += 2)
            add_member(members, evaluate(*n.nodes[i]), evaluate(*n.nodes[i + 1]));
        return object(std::move(members));
    }
    void add_member(Members& members, const Value& key, const Value& value)
    {
        if (!key.is(Value::text) && !key.is_number() && !key.is(Value::none))
            wrong(std::string(kind_name(key)) + " cannot be the key of a dict");
        for (auto& [name, old] : members)
            if (equal(name, key)) {
                old = value;
                return;
            }
        members.emplace_back(key, value);
    }
    Value joined(const Node& n)
    {
        std::string out;
        for (const Node* part : n.nodes) write_plain(out, evaluate(*part));
        return of_text(std::move(out));
    }
    Value logical(const Node& n)
    {
        Value v;
        for (const Node* part : n.nodes) {
            v = evaluate(*part);
            if (truthy(v) == (n.kind == Node::either)) break;
        }
        return v;
    }
    Value compared(const Node& n)
    {
        Value left = evaluate(*n.nodes[0]);
        for (size_t i = 0; i < n.words.size(); i++) {
            Value right = evaluate(*n.nodes[i + 1]);
            const std::string& op = n.words[i];
            bool yes;
            if (op == "==" || op == "!=") yes = equal(left, right) == (op == "==");
            else if (op == "in" || op == "not in") yes = contains(right, left) == (op == "in");
            else {
                require_defined(left);
                require_defined(right);
                const bool swap = op == ">" || op == "<=", negate = op == "<=" || op == ">=";
                yes = less(swap ? right : left, swap ? left : right) != negate;
            }
            if (!yes) return of_bool(false);
            left = std::move(right);
        }
        return of_bool(true);
    }
    Value whole_number(double approximate, int64_t exact) const // exact where the double shows that it fits
    {
        if (!(std::fabs(approximate) < 4e18)) wrong("a number is too large");
        return of_int(exact);
    }
    Value signed_number(const Node& n)
    {
        const Value v = evaluate(*n.nodes[0]);
        require_defined(v);
        if (!v.is_number()) wrong(std::string(kind_name(v)) + " has no sign");
        if (n.kind == Node::positive) return v.is(Value::real) ? v : of_int(v.whole());
        return v.is(Value::real) ? of_real(-v.fraction) : of_int(-v.whole());
    }
    Value binary(const std::string& op, const Value& a, const Value& b)
    {
        require_defined(a);
        require_defined(b);
        if (a.is_number() && b.is_number()) return arithmetic(op, a, b);
        if (op == "+" && a.is(Value::text) && b.is(Value::text)) {
            std::string out;
            append(out, a.str());
            append(out, b.str());
            return of_text(std::move(out));
        }
        if (op == "+" && a.is(Value::list) && b.is(Value::list) && a.flag == b.flag) {
            charge((a.items->size() + b.items->size()) * sizeof(Value));
            List out(*a.items);
            out.insert(out.end(), b.items->begin(), b.items->end());
            return of_list(std::move(out), a.flag);
        }
        if (op == "*" && (a.is(Value::text) || a.is(Value::list)) && b.is_whole()) return repeated(a, b.whole());
        if (op == "*" && (b.is(Value::text) || b.is(Value::list)) && a.is_whole()) return repeated(b, a.whole());
        wrong(std::string(kind_name(a)) + " " + op + " " + kind_name(b) + " has no meaning");
    }
    Value repeated(const Value& v, int64_t times)
    {
        std::string out;
        List items;
        for (int64_t i = 0; i < times; i++) {
            step();
            if (v.is(Value::text)) append(out, v.str());
            else {
                charge(v.items->size() * sizeof(Value));
                items.insert(items.end(), v.items->begin(), v.items->end());
            }
        }
        return v.is(Value::text) ? of_text(std::move(out)) : of_list(std::move(items), v.flag);
    }
    Value arithmetic(const std::string& op, const Value& a, const Value& b)
    {
        const double x = a.floating(), y = b.floating();
        const bool exact = a.is_whole() && b.is_whole();
        if ((op == "/" || op == "//" || op == "%") && !(y < 0) && !(y > 0)) wrong("a division by 0");
        if (op == "/") return of_real(x / y);
        if (!exact) {
            const double below = std::floor(x / y);
            if (op == "//" || op == "%") return of_real(op == "%" ? x - below * y : below);
            return of_real(op == "+" ? x + y : op == "-" ? x - y : x * y);
        }
        const int64_t m = a.whole(), n = b.whole();
        const double size = op == "+" ? x + y : op == "-" ? x - y : op == "*" ? x * y : 0;
        if (!(std::fabs(size) < 4e18)) wrong("a number is too large");
        const int64_t rest = op == "%" || op == "//" ? m % n : 0;
        const int64_t floor_rest = rest && (rest < 0) != (n < 0) ? rest + n : rest;
        if (op == "%") return of_int(floor_rest);
        if (op == "//") return of_int((m - floor_rest) / n);
        return of_int(op == "+" ? m + n : op == "-" ? m - n : m * n);
    }
    Value to_int(const Value& v, int64_t otherwise = 0)
    {
        if (v.is_whole()) return of_int(v.whole());
        if (v.is(Value::real))
            return of_int(std::fabs(v.fraction) < 4e18 ? static_cast<int64_t>(v.fraction) : otherwise);
        const std::string s(v.is(Value::text) ? stripped(v.str(), side_left | side_right) : std::string_view());
        const size_t sign = !s.empty() && (s[0] == '-' || s[0] == '+') ? 1 : 0;
        if (s.size() == sign || s.size() > 18 || s.find_first_not_of("0123456789", sign) != std::string::npos) {
            const Value x = to_real(v, std::nan(""));
            return std::isnan(x.fraction) ? of_int(otherwise) : to_int(x, otherwise);
        }
        int64_t n = 0;
        for (size_t i = sign; i < s.size(); i++) n = n * 10 + (s[i] - '0');
        return of_int(s[0] == '-' ? -n : n);
    }
    Value to_real(const Value& v, double otherwise = 0)
    {
        if (v.is_number()) return of_real(v.floating());
        const std::string s(v.is(Value::text) ? stripped(v.str(), side_left | side_right) : std::string_view());
        std::istringstream stream(s);
        stream.imbue(std::locale::classic());
        double x = 0;
        const bool plain = !s.empty() && s.find_first_not_of("0123456789+-.eE") == std::string::npos;
        return of_real(plain && stream >> x && stream.peek() == EOF ? x : otherwise);
    }

    // ---- Calls ----

    Named named_of(const Node& n)
    {
        Named out;
        for (const auto& [name, value] : n.named) out.emplace_back(name, evaluate(*value));
        return out;
    }
    Value call(const Node& n)
    {
        const Node& callee = *n.nodes[0];
        if (callee.kind == Node::attribute) {
            const Value object = evaluate(*callee.nodes[0]);
            require_defined(object);
            const Args args = all_of(n.nodes, 1);
            const Named named = named_of(n);
            line_ = n.line;
            if (object.is(Value::text)) return text_method(callee.word, object.str(), args, named);
            Value out;
            if (!named.size() && member_method(callee.word, object, args, &out)) return out;
            return invoke(attribute(object, callee.word), callee.word, args, named);
        }
        const Value what = evaluate(callee);
        const Args args = all_of(n.nodes, 1);
        const Named named = named_of(n);
        line_ = n.line;
        return invoke(what, callee.word, args, named);
    }
    Value invoke(const Value& what, const std::string& name, const Args& args, const Named& named)
    {
        require_defined(what);
        if (what.is(Value::macro)) return run_macro(*what.body, args, named);
        if (!what.is(Value::function))
            wrong("'" + printable(name) + "' is " + kind_name(what) + " and cannot be called");
        const std::string_view f = what.view();
        if (f == "namespace" || f == "dict") {
            Members members;
            for (const Value& v : args) {
                if (!v.is(Value::dict) && !v.is(Value::space)) wrong(std::string(f) + "() takes dicts and names");
                for (const auto& [key, value] : *v.members) add_member(members, key, value);
            }
            for (const auto& [key, value] : named) add_member(members, of_text(key), value);
            return object(std::move(members), f == "dict" ? Value::dict : Value::space);
        }
        if (f == "range") return range(args);
        if (args.size() != 1 || !named.empty()) wrong(std::string(f) + "() takes one argument");
        if (f == "raise_exception")
            throw ChatRefusal("the chat template refuses this conversation: " + printable(plain(args[0]), 300));
        return text(time_text(plain(args[0])));
    }
    Value run_macro(const Node& n, const Args& args, const Named& named)
    {
        if (args.size() > n.named.size())
            wrong("the macro " + printable(n.word) + " takes " + std::to_string(n.named.size()) + " arguments");
        Scope inner;
        inner.outer = &globals_;
        const Entered entered(*this, &inner);
        for (size_t i = 0; i < n.named.size(); i++) {
            const auto& [name, otherwise] = n.named[i];
            const Value* const given = argument(args, named, i, name);
            inner.names[name] = given ? *given : otherwise ? evaluate(*otherwise) : of_kind(Value::undefined, name);
        }
        for (const auto& [name, value] : named)
            if (!inner.names.count(name))
                wrong("the macro " + printable(n.word) + " has no parameter " + printable(name));
        return captured(n);
    }
    Value range(const Args& args)
    {
        int64_t part[3] = {0, 0, 1};
        if (args.empty() || args.size() > 3) wrong("range() takes one to three numbers");
        for (size_t i = 0; i < args.size(); i++) {
            if (!args[i].is_whole()) wrong("range() takes whole numbers");
            part[args.size() == 1 ? 1 : i] = args[i].whole();
        }
        if (!part[2]) wrong("the step of range() is 0");
        List out;
        for (int64_t i = part[0]; part[2] > 0 ? i < part[1] : i > part[1];) {
            step();
            charge(sizeof(Value));
            out.push_back(of_int(i));
            if (std::fabs(static_cast<double>(i) + static_cast<double>(part[2])) > 4e18) break;
            i += part[2];
        }
        return of_list(std::move(out));
    }
    std::string time_text(const std::string& pattern)
    {
        const std::time_t now = input_.now ? input_.now : std::time(nullptr);
        const std::tm* const there = std::localtime(&now);
        std::string out;
        for (size_t i = 0; there && i < pattern.size(); i++) {
            const bool bare = i + 1 < pattern.size() && pattern[i + 1] == '-';              // %-d: without its zero
            const size_t at = i + (bare ? 2 : 1);
            if (pattern[i] != '%') {
                out += pattern[i];
                continue;
            }
            if (at >= pattern.size() || !pattern[at] || !std::strchr("aAbBcdDeFHIjmMpRSTuwxXyYZ%", pattern[at]))
                wrong("strftime_now() does not know this format");
            const char one[3] = {'%', pattern[at], '\0'};
            char piece[128];
            const size_t n = std::strftime(piece, sizeof piece, one, there);
            const size_t zeros = bare && n > 1 && piece[0] == '0' ? 1 : 0;
            out.append(piece + zeros, n - zeros);
            i = at;
        }
        return out;
    }

    // ---- Methods ----

    bool member_method(const std::string& name, const Value& object, const Args& args, Value* out)
    {
        if (object.is(Value::list)) {
            if (name != "count" || args.size() != 1) return false;
            int64_t n = 0;
            for (const Value& item : *object.items) n += equal(item, args[0]);
            *out = of_int(n);
            return true;
        }
        if (!object.is(Value::dict)) return false;
        if (name == "get" && (args.size() == 1 || args.size() == 2)) {
            const Value* const found = find(object, args[0]);
            *out = found ? *found : args.size() == 2 ? args[1] : of_kind(Value::none);
            return true;
        }
        if (name == "cycle" && !args.empty() && member(object, "index0")) {                // loop.cycle(...)
            *out = args[static_cast<size_t>(member(object, "index0")->whole()) % args.size()];
            return true;
        }
        if (!args.empty() || (name != "items" && name != "keys" && name != "values")) return false;
        List all;
        for (const auto& [key, value] : *object.members)
            all.push_back(name == "keys" ? key : name == "values" ? value : of_list({key, value}, true));
        *out = of_list(std::move(all));
        return true;
    }

    const Value* argument(const Args& args, const Named& named, size_t i, std::string_view name) const
    {
        if (i < args.size()) return &args[i];
        for (const auto& [key, value] : named)
            if (key == name) return &value;
        return nullptr;
    }
    std::string text_argument(const Args& args, size_t i, const std::string& method) const
    {
        if (i >= args.size() || !args[i].is(Value::text)) wrong(method + "() needs text");
        return args[i].str();
    }
    static bool starts(std::string_view s, std::string_view with) { return s.substr(0, with.size()) == with; }
    static bool ends(std::string_view s, std::string_view with)
    {
        return s.size() >= with.size() && s.substr(s.size() - with.size()) == with;
    }
    Value text_method(const std::string& name, const std::string& s, const Args& args, const Named& named)
    {
        step(1 + s.size() / 64);
        if (name == "strip" || name == "lstrip" || name == "rstrip") {
            const uint32_t sides = name == "strip" ? side_left | side_right : name == "lstrip" ? side_left : side_right;
            const bool given = !args.empty() && !args[0].is(Value::none);
            if (given && text_argument(args, 0, name).empty()) return text(s);
            return text(stripped(s, sides, given ? std::string_view(args[0].str()) : std::string_view()));
        }
        if (name == "startswith" || name == "endswith") {
            if (args.empty()) wrong(name + "() needs text");
            const Args all = args[0].is(Value::list) ? *args[0].items : Args{args[0]};
            bool yes = false;
            for (size_t i = 0; i < all.size(); i++) {
                const std::string with = text_argument(all, i, name);
                yes = yes || (name == "startswith" ? starts(s, with) : ends(s, with));
            }
            return of_bool(yes);
        }
        if (name == "removeprefix" || name == "removesuffix") {
            const std::string part = text_argument(args, 0, name);
            if (name == "removeprefix") return text(starts(s, part) ? s.substr(part.size()) : s);
            return text(ends(s, part) ? s.substr(0, s.size() - part.size()) : s);
        }
        if (name == "split" || name == "rsplit") return split(s, args, named, name == "rsplit");
        if (name == "splitlines") return lines(s);
        if (name == "replace") {
            const Value* const count = argument(args, named, 2, "count");
            const int64_t most = count ? to_int(*count).whole() : -1;
            return replaced(s, text_argument(args, 0, name), text_argument(args, 1, name), most);
        }
        if (name == "find" || name == "rfind") {
            const std::string what = text_argument(args, 0, name);
            const size_t at = name[0] == 'r' ? s.rfind(what) : s.find(what);
            return at == std::string::npos ? of_int(-1) : of_size(count_characters(std::string_view(s).substr(0, at)));
        }
        if (name == "count") return count_of(s, text_argument(args, 0, name));
        if (name == "join") return joined(args.empty() ? Value() : args[0], s, true);
        if (name == "upper" || name == "lower" || name == "title" || name == "capitalize") return cased(name, s);
        wrong("text has no method " + printable(name, 30) + "() here");
    }
    Value cased(const std::string& how, std::string s)
    {
        bool inside = false;                                   // a word
        for (size_t i = 0; i < s.size(); i++) {
            const bool small = how == "lower" || (how == "title" && inside) || (how == "capitalize" && i);
            inside = is_letter(s[i]);
            s[i] = small ? to_lower(s[i]) : to_upper(s[i]);
        }
        return text(std::move(s));
    }
    Value count_of(const std::string& s, const std::string& what)
    {
        if (what.empty()) return of_size(count_characters(s) + 1);
        int64_t n = 0;
        for (size_t at = 0; (at = s.find(what, at)) != std::string::npos; at += what.size()) n++;
        return of_int(n);
    }
    Value replaced(const std::string& s, const std::string& from, const std::string& to, int64_t most)
    {
        std::string out;
        size_t at = 0;
        for (int64_t n = 0; most < 0 || n < most; n++) {
            if (from.empty()) {                                // before each character, and at the end
                append(out, to);
                if (at == s.size()) break;
                append(out, std::string_view(s).substr(at, character(s, at)));
                at += character(s, at);
                continue;
            }
            const size_t found = s.find(from, at);
            if (found == std::string::npos) break;
            append(out, std::string_view(s).substr(at, found - at));
            append(out, to);
            at = found + from.size();
        }
        append(out, std::string_view(s).substr(at));
        return of_text(std::move(out));
    }
    Value split(const std::string& s, const Args& args, const Named& named, bool right)
    {
        const Value *const sep = argument(args, named, 0, "sep"), *const limit = argument(args, named, 1, "maxsplit");
        int64_t most = limit ? to_int(*limit).whole() : -1;
        List out;
        const auto add = [&](std::string_view piece) {
            charge(sizeof(Value));
            out.push_back(text(piece));
        };
        std::string_view rest = s;
        if (!sep || sep->is(Value::none)) {                    // runs of white space
            if (right && most >= 0) wrong("rsplit() at white space takes no limit");
            while (true) {
                rest = stripped(rest, side_left);
                if (rest.empty()) break;
                if (most >= 0 && !most--) {
                    add(rest);
                    break;
                }
                size_t n = 0;
                while (n < rest.size() && !is_space(rest.substr(n, character(rest, n)))) n += character(rest, n);
                add(rest.substr(0, n));
                rest.remove_prefix(n);
            }
            return of_list(std::move(out));
        }
        if (!sep->is(Value::text) || sep->str().empty()) wrong("split() needs text to split at");
        const std::string& at = sep->str();
        for (; most; most -= most > 0) {
            const size_t found = right ? rest.rfind(at) : rest.find(at);
            if (found == std::string_view::npos) break;
            add(right ? rest.substr(found + at.size()) : rest.substr(0, found));
            rest = right ? rest.substr(0, found) : rest.substr(found + at.size());
        }
        add(rest);
        if (right) std::reverse(out.begin(), out.end());
        return of_list(std::move(out));
    }
    Value lines(const std::string& s)
    {
        List out;
        for (size_t at = 0; at < s.size();) {
            const size_t end = std::min(s.find_first_of("\n\r", at), s.size());
            charge(sizeof(Value));
            out.push_back(text(s.substr(at, end - at)));
            at = end + 1 + (end + 1 < s.size() && s[end] == '\r' && s[end + 1] == '\n');
        }
        return of_list(std::move(out));
    }
    Value joined(const Value& list, const std::string& between, bool only_text)
    {
        std::string out;
        bool first = true;
        const std::shared_ptr<const List> parts = elements(list);
        for (const Value& v : *parts) {
            if (only_text && !v.is(Value::text)) wrong("join() needs text");
            if (!first) append(out, between);
            write_plain(out, v);
            first = false;
        }
        return of_text(std::move(out));
    }

    // ---- Filters ----

    Value filtered(const Node& n)
    {
        const Value v = evaluate(*n.nodes[0]);
        const Args args = all_of(n.nodes, 1);
        const Named named = named_of(n);
        line_ = n.line;
        return filter(n.word, v, args, named);
    }
    Value filter(const std::string& f, const Value& v, const Args& args, const Named& named)
    {
        const Level level(*this);
        step();
        if (f == "default" || f == "d") {
            const Value* const other = argument(args, named, 0, "default_value");
            const Value* const falsy = argument(args, named, 1, "boolean");
            const bool use = v.is(Value::undefined) || (falsy && truthy(*falsy) && !truthy(v));
            return !use ? v : other ? *other : of_text("");
        }
        if (f == "length" || f == "count") {
            if (v.is(Value::text)) return of_size(count_characters(v.str()));
            return of_size(v.members ? v.members->size() : elements(v)->size());
        }
        if (f == "tojson") {
            const Value* const indent = argument(args, named, 1, "indent");
            std::string out;
            const int64_t by = indent && indent->is_whole() ? std::clamp<int64_t>(indent->whole(), 0, 16) : -1;
            const Value* const sort = argument(args, named, 3, "sort_keys");
            if (sort && truthy(*sort)) wrong("tojson does not sort keys here");
            write(out, v, true, by, 0);
            return of_text(std::move(out));
        }
        if (f == "string" || f == "safe") return v.is(Value::text) ? v : of_text(plain(v));
        if (f == "int") return to_int(v, args.empty() ? 0 : to_int(args[0]).whole());
        if (f == "float") return to_real(v, args.empty() ? 0 : args[0].floating());
        if (f == "items") {
            Value out;
            if (v.is(Value::undefined)) return of_list({});
            if (!member_method("items", v, {}, &out)) wrong(std::string(kind_name(v)) + " has no items");
            return out;
        }
        if (f == "trim") {
            const Value* const set = argument(args, named, 0, "chars");
            const std::string all = plain(v);
            const std::string_view dropped = set && set->is(Value::text) ? set->view() : std::string_view();
            return text(stripped(all, side_left | side_right, dropped));
        }
        if (f == "upper" || f == "lower" || f == "title" || f == "capitalize") return cased(f, plain(v));
        if (f == "replace") return text_method("replace", plain(v), args, named);
        if (f == "indent") return indented(plain(v), args, named);
        if (f == "join") return join(v, args, named);
        static constexpr std::string_view choosing[] = {"map", "select", "reject", "selectattr", "rejectattr"};
        for (const std::string_view name : choosing)
            if (f == name) return chosen(f, v, args, named);
        return list_filter(f, v);
    }
    Value list_filter(const std::string& f, const Value& v)
    {
        if (f == "reverse" && v.is(Value::text)) {
            std::string out;
            for (const std::string_view c : characters(v.str())) out.insert(0, c);
            step(out.size() * out.size() / 1024);
            return text(std::move(out));
        }
        if (f != "first" && f != "last" && f != "list" && f != "reverse")
            wrong("there is no filter " + printable(f, 30));
        if (f == "first" || f == "last") {
            const std::shared_ptr<const List> all = elements(v);
            if (all->empty()) return of_kind(Value::undefined, "the " + f + " element");
            return f == "first" ? all->front() : all->back();
        }
        List all = *elements(v);
        charge(all.size() * sizeof(Value));
        if (f == "reverse") std::reverse(all.begin(), all.end());
        return of_list(std::move(all));
    }
    Value indented(const std::string& s, const Args& args, const Named& named)
    {
        const Value *const width = argument(args, named, 0, "width"), *const first = argument(args, named, 1, "first");
        const std::string blanks = width && width->is(Value::text) ? width->str()
            : std::string(static_cast<size_t>(std::clamp<int64_t>(width ? to_int(*width).whole() : 4, 0, 1000)), ' ');
        std::string out;
        for (size_t at = 0; at <= s.size();) {
            const size_t end = std::min(s.find('\n', at), s.size());
            if (end > at && (at || (first && truthy(*first)))) append(out, blanks);
            append(out, std::string_view(s).substr(at, end - at + (end < s.size())));
            at = end + 1;
        }
        return of_text(std::move(out));
    }
    Value join(const Value& v, const Args& args, const Named& named)
    {
        const Value *const between = argument(args, named, 0, "d"), *const by = argument(args, named, 1, "attribute");
        Value list = v;
        if (by) list = chosen("map", v, {}, {{"attribute", *by}});
        return joined(list, between ? plain(*between) : "", false);
    }
    Value path(const Value& v, const Value& name)              // an attribute, or several with points between
    {
        if (!name.is(Value::text)) return element(v, name);
        Value at = v;
        const std::shared_ptr<const List> parts = split(name.str(), {of_text(".")}, {}, false).items;
        for (const Value& part : *parts) {
            const Value index = to_int(part, -1);
            at = at.is(Value::list) && index.whole() >= 0 ? element(at, index) : attribute(at, part.str());
        }
        return at;
    }
    Value chosen(const std::string& f, const Value& v, const Args& args, const Named& named)
    {
        List out;
        const bool by_attribute = f == "selectattr" || f == "rejectattr", map = f == "map", keep = f[0] == 's';
        const Value* const name = argument({}, named, 0, "attribute");
        const Value* const otherwise = argument({}, named, 0, "default");
        if (by_attribute && args.empty()) wrong(f + " needs the name of an attribute");
        if (map && !name && args.empty()) wrong("map needs a filter or an attribute");
        const size_t at = by_attribute ? 1 : 0;                // where the filter or test stands
        const Args rest(args.begin() + static_cast<std::ptrdiff_t>(std::min(args.size(), at + 1)), args.end());
        if (!name && at < args.size() && !args[at].is(Value::text)) wrong(f + " needs the name of a filter or test");
        const std::shared_ptr<const List> parts = elements(v);
        for (const Value& item : *parts) {
            charge(sizeof(Value));
            if (map) {
                Value made = name ? path(item, *name) : filter(args[0].str(), item, rest, named);
                out.push_back(name && otherwise && made.is(Value::undefined) ? *otherwise : std::move(made));
                continue;
            }
            const Value subject = by_attribute ? path(item, args[0]) : item;
            const bool passes = at < args.size() ? tested(args[at].str(), subject, rest) : truthy(subject);
            if (passes == keep) out.push_back(item);
        }
        return of_list(std::move(out));
    }

    // ---- Tests ----

    bool tested(const std::string& t, const Value& v, const Args& args)
    {
        step();
        const auto argument = [&]() -> const Value& {
            if (args.size() != 1) wrong("the test " + printable(t, 30) + " needs one argument");
            return args[0];
        };
        if (t == "defined") return !v.is(Value::undefined);
        if (t == "undefined") return v.is(Value::undefined);
        if (t == "none") return v.is(Value::none);
        if (t == "string") return v.is(Value::text);
        if (t == "mapping") return v.is(Value::dict);
        if (t == "boolean") return v.is(Value::boolean);
        if (t == "true" || t == "false") return v.is(Value::boolean) && v.flag == (t == "true");
        if (t == "integer") return v.is(Value::integer);
        if (t == "float") return v.is(Value::real);
        if (t == "number") return v.is_number();
        if (t == "iterable" || t == "sequence")
            return v.is(Value::text) || v.is(Value::list) || v.is(Value::dict) || v.is(Value::undefined);
        if (t == "callable") return v.is(Value::macro) || v.is(Value::function);
        if (t == "even" || t == "odd") {
            if (!v.is_whole()) wrong("the test " + t + " needs a whole number");
            return (v.whole() % 2 != 0) == (t == "odd");
        }
        if (t == "divisibleby") return !truthy(binary("%", v, argument()));
        if (t == "in") return contains(argument(), v);
        if (t == "eq" || t == "equalto" || t == "==") return equal(v, argument());
        if (t == "sameas") return v.kind == argument().kind && equal(v, args[0]);
        if (t == "ne" || t == "!=") return !equal(v, argument());
        if (t == "lt" || t == "lessthan" || t == "<") return less(v, argument());
        if (t == "gt" || t == "greaterthan" || t == ">") return less(argument(), v);
        if (t == "le" || t == "<=") return !less(argument(), v);
        if (t == "ge" || t == ">=") return !less(v, argument());
        wrong("there is no test " + printable(t, 30));
    }

    const ChatInput& input_;
    uint64_t steps_, bytes_;
    uint32_t depth_ = 0, line_ = 0;
    Scope globals_;
    Scope* scope_ = nullptr;
};

}  // namespace jinja

inline std::string render_chat(std::string_view text, const ChatInput& input, const ChatLimits& limits)
{
    std::vector<std::unique_ptr<jinja::Node>> store;
    const std::vector<jinja::Node*> program = jinja::Parser(text).parse(&store);
    return jinja::Evaluator(input, limits).run(program);
}

// ---- Well-known templates -------------------------------------------------------------------------------------------
// For models that come without their template, and for templates that go beyond what is evaluated here.

inline const ChatFamily chat_families[] = {
    {"chatml", {"<|im_start|>", "<|im_end|>"},
     "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {"llama3", {"<|start_header_id|>", "<|eot_id|>"},
     "{{ bos_token }}{% for m in messages %}"
     "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"},
    {"gemma", {"<start_of_turn>", "<end_of_turn>"},
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
     "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}{% else %}"
     "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + ns.system + m.content | trim }}"
     "{{ '<end_of_turn>\n' }}{% set ns.system = '' %}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"},
    {"deepseek", {"<\xef\xbd\x9cUser\xef\xbd\x9c>", "<\xef\xbd\x9c" "Assistant\xef\xbd\x9c>"},
     "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}{% elif m.role == 'user' %}"
     "{{ '<\xef\xbd\x9cUser\xef\xbd\x9c>' + m.content }}{% else %}"
     "{{ '<\xef\xbd\x9c" "Assistant\xef\xbd\x9c>' + m.content + eos_token }}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<\xef\xbd\x9c" "Assistant\xef\xbd\x9c>' }}{% endif %}"},
    {"phi3", {"<|user|>", "<|end|>"},
     "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"},
    {"zephyr", {"<|user|>", "<|assistant|>"},
     "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}"
     "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"},
    {"llama2", {"[INST]", "<<SYS>>"},
     "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
     "{% set ns.system = '<<SYS>>\n' + m.content + '\n<</SYS>>\n\n' %}{% elif m.role == 'user' %}"
     "{{ bos_token + '[INST] ' + ns.system + m.content | trim + ' [/INST]' }}{% set ns.system = '' %}{% else %}"
     "{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}"},
    {"mistral", {"[INST]", "[/INST]"},
     "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
     "{% set ns.system = m.content + '\n\n' %}{% elif m.role == 'user' %}"
     "{{ '[INST] ' + ns.system + m.content + ' [/INST]' }}{% set ns.system = '' %}"
     "{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}"},
};
inline const ChatFamily* chat_family_named(std::string_view name)
{
    for (const ChatFamily& f : chat_families)
        if (name == f.name) return &f;
    return nullptr;
}
inline const ChatFamily* chat_family_of(std::string_view text)
{
    const auto has = [&](const char* mark) { return text.find(mark) != std::string_view::npos; };
    for (const ChatFamily& f : chat_families)
        if (has(f.marks[0]) && has(f.marks[1])) return &f;
    return nullptr;
}
inline std::string chat_family_names()
{
    std::string out;
    for (const ChatFamily& f : chat_families) out += (out.empty() ? "" : ", ") + std::string(f.name);
    return out;
}

}  // namespace weights
#endif
