// weights/json.hpp - reads JSON as Python writes it, out of files that are not trusted
//
// What the grammar of RFC 8259 allows, and NaN, Infinity and -Infinity, which Python writes too. Every byte is looked
// at within bounds; nesting and the number of values are limited, so a small file cannot ask for much memory or stack.
// A key that stands twice in an object is an error: the two would otherwise mean what the reader happens to prefer.
#ifndef TRANSFORMER_WEIGHTS_JSON_HPP
#define TRANSFORMER_WEIGHTS_JSON_HPP

#include "files.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <locale>
#include <sstream>
#include <string_view>
#include <vector>

namespace weights {

struct Json {
    enum Kind : uint8_t { null, boolean, number, text, list, object };
    struct Member;

    Kind kind = null;
    bool flag = false;              // of a boolean
    bool exact = false;             // the number is `integer`
    int64_t integer = 0;
    double value = 0;               // of any number
    std::string string;
    std::vector<Json> items;        // of a list
    std::vector<Member> members;    // of an object, in ascending order of their keys

    // The member of that name, or nullptr; also when this is no object.
    inline const Json* find(std::string_view key) const;
};
struct Json::Member {
    std::string key;
    Json value;
};

inline const Json* Json::find(std::string_view key) const
{
    const auto at = std::lower_bound(members.begin(), members.end(), key,
        [](const Member& m, std::string_view k) { return m.key < k; });
    return at != members.end() && at->key == key ? &at->value : nullptr;
}

// The code point as UTF-8.
inline void append_utf8(std::string& out, uint32_t c)
{
    const auto put = [&](uint32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
    if (c < 0x80) return put(c);
    if (c < 0x800) {
        put(0xc0 | c >> 6);
    } else {
        if (c < 0x10000) {
            put(0xe0 | c >> 12);
        } else {
            put(0xf0 | c >> 18);
            put(0x80 | (c >> 12 & 63));
        }
        put(0x80 | (c >> 6 & 63));
    }
    put(0x80 | (c & 63));
}

class JsonParser {
public:
    JsonParser(const char* text, size_t n, const std::string& name, size_t max_values)
        : text_(text), n_(n), name_(name), values_left_(max_values)
    {
        number_.imbue(std::locale::classic());
    }

    Json document()
    {
        if (n_ >= 3 && std::string_view(text_, 3) == "\xef\xbb\xbf") at_ = 3; // a byte order mark
        Json json = value(0);
        space();
        if (at_ != n_) fail("there is more text after the value");
        return json;
    }

private:
    static constexpr uint32_t max_depth = 64;

    [[noreturn]] void fail(const std::string& what) const
    {
        throw Error(name_ + ": is not readable as JSON: " + what + " at byte " + std::to_string(at_));
    }
    bool at_end() const { return at_ == n_; }
    char peek() const { return at_ < n_ ? text_[at_] : '\0'; } // a real NUL is no token either
    void space()
    {
        while (at_ < n_ && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) at_++;
    }
    bool take(std::string_view token)
    {
        if (std::string_view(text_, n_).compare(at_, token.size(), token) != 0) return false;
        at_ += token.size();
        return true;
    }
    void need(char token)
    {
        space();
        if (at_end()) fail("the text ends early");
        if (!take({&token, 1})) fail(std::string("a '") + token + "' is missing");
    }

    Json value(uint32_t depth)
    {
        if (depth > max_depth) fail("more than " + std::to_string(max_depth) + " levels of brackets");
        if (!values_left_--) fail("there are too many values");
        space();
        if (at_end()) fail("the text ends early");
        Json json;
        const char c = peek();
        if (c == '{') {
            members(json, depth);
        } else if (c == '[') {
            items(json, depth);
        } else if (c == '"') {
            json.kind = Json::text;
            json.string = quoted();
        } else if (take("null")) {
            json.kind = Json::null;
        } else if (take("true") || take("false")) {
            json.kind = Json::boolean;
            json.flag = text_[at_ - 2] == 'u';
        } else {
            json.kind = Json::number;
            number(json);
        }
        return json;
    }

    void members(Json& json, uint32_t depth)
    {
        json.kind = Json::object;
        at_++;
        space();
        if (take("}")) return;
        do {
            space();
            if (peek() != '"') fail("a key in quotes is missing");
            std::string key = quoted();
            need(':');
            json.members.push_back({std::move(key), value(depth + 1)});
            space();
        } while (take(","));
        need('}');
        auto& all = json.members;
        std::sort(all.begin(), all.end(), [](const Json::Member& a, const Json::Member& b) { return a.key < b.key; });
        for (size_t i = 1; i < all.size(); i++)
            if (all[i].key == all[i - 1].key)
                throw Error(name_ + ": the key \"" + printable(all[i].key) + "\" stands twice in one object");
    }

    void items(Json& json, uint32_t depth)
    {
        json.kind = Json::list;
        at_++;
        space();
        if (take("]")) return;
        do {
            json.items.push_back(value(depth + 1));
            space();
        } while (take(","));
        need(']');
    }

    uint32_t four_digits()
    {
        uint32_t code = 0;
        for (int i = 0; i < 4; i++, at_++) {
            const char c = peek();
            const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A'
                && c <= 'F' ? c - 'A' + 10 : -1;
            if (digit < 0) fail("\\u needs four hexadecimal digits");
            code = code * 16 + static_cast<uint32_t>(digit);
        }
        return code;
    }

    // A character of several bytes, checked to be UTF-8: no overlong form, no surrogate, nothing beyond U+10FFFF.
    void multibyte(std::string& out)
    {
        const unsigned char lead = static_cast<unsigned char>(text_[at_]);
        const uint32_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        uint32_t code = more == 3 ? lead & 7u : more == 2 ? lead & 15u : lead & 31u;
        bool good = lead >= 0xc2 && lead <= 0xf4 && n_ - at_ > more;
        for (uint32_t i = 1; good && i <= more; i++) {
            const unsigned char c = static_cast<unsigned char>(text_[at_ + i]);
            good = (c & 0xc0) == 0x80;
            code = code << 6 | (c & 63u);
        }
        if (!good || (more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10ffff))
            || (code >= 0xd800 && code < 0xe000))
            fail("a string is not UTF-8");
        out.append(text_ + at_, more + 1);
        at_ += more + 1;
    }

    std::string quoted()
    {
        std::string out;
        for (at_++;;) {
            if (at_end()) fail("the text ends inside a string");
            const char c = text_[at_];
            if (c == '"') break;
            if (static_cast<unsigned char>(c) < 0x20) fail("a string has a control character");
            if (static_cast<unsigned char>(c) >= 0x80) {
                multibyte(out);
                continue;
            }
            at_++;
            if (c != '\\') {
                out += c;
                continue;
            }
            static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
            const char escape = peek();
            const size_t known = escape ? std::string_view(from).find(escape) : std::string_view::npos;
            if (known != std::string_view::npos) {
                out += to[known];
                at_++;
            } else if (take("u")) {
                uint32_t code = four_digits();
                if (code >= 0xd800 && code < 0xdc00 && take("\\u")) {
                    const uint32_t low = four_digits();
                    if (low < 0xdc00 || low >= 0xe000) fail("a surrogate has no partner");
                    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                } else if (code >= 0xd800 && code < 0xe000) {
                    fail("a surrogate has no partner");
                }
                append_utf8(out, code);
            } else {
                fail("a backslash is followed by no known letter");
            }
        }
        at_++;
        return out;
    }

    size_t digits()
    {
        const size_t first = at_;
        while (peek() >= '0' && peek() <= '9') at_++;
        return at_ - first;
    }

    void number(Json& json)
    {
        const size_t first = at_;
        const bool negative = take("-");
        if (take("Infinity") || (!negative && take("NaN"))) {
            const double infinity = std::numeric_limits<double>::infinity();
            json.value = text_[at_ - 1] == 'N' ? std::numeric_limits<double>::quiet_NaN()
                         : negative            ? -infinity
                                               : infinity;
            return;
        }
        const size_t integer_at = at_, n = digits();
        if (!n) fail("a value is missing");
        if (n > 1 && text_[integer_at] == '0') fail("a number begins with 0");
        json.exact = true;
        if (take(".")) {
            json.exact = false;
            if (!digits()) fail("a number has no digits after its point");
        }
        if (take("e") || take("E")) {
            json.exact = false;
            if (!take("+")) take("-");
            if (!digits()) fail("a number has no digits in its exponent");
        }
        if (json.exact && n <= 18) {                           // below 10^18: fits
            for (size_t i = integer_at; i < at_; i++) json.integer = json.integer * 10 + (text_[i] - '0');
            json.value = static_cast<double>(json.integer);
            if (negative) {
                json.integer = -json.integer;
                json.value = -json.value;
            }
            return;
        }
        json.exact = false;
        number_.clear();
        number_.str(std::string(text_ + first, at_ - first));
        number_ >> json.value;                                 // too large: the largest double
    }

    const char* text_;
    size_t n_, at_ = 0;
    std::string name_;
    size_t values_left_;
    std::istringstream number_;
};

// `name` stands at the front of the sentence that says what is wrong.
inline Json parse_json(std::string_view text, const std::string& name, size_t max_values = 1000000)
{
    return JsonParser(text.data(), text.size(), name, max_values).document();
}

// A small file: a configuration, an index.
inline Json read_json(const std::string& path, uint64_t max_bytes = uint64_t{1} << 26) {
    return parse_json(read_text(path, max_bytes), path); }

}  // namespace weights
#endif
