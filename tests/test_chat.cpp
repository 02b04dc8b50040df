// Chat templates: what weights/chat.hpp makes of them is what Python's jinja2 made (tests/data/chat.json, written by
// tests/make_chat_data.py); hostile ones end in a sentence.
#include "doctest.h"
#include "weights/chat.hpp"

#include <string>
#include <vector>

using weights::ChatInput;
using weights::ChatMessage;
using weights::ChatRefusal;
using weights::Json;

namespace {

const Json& data()
{
    static const Json json = weights::read_json("tests/data/chat.json");
    return json;
}
const std::string& text_of(const Json& object, const char* key)
{
    const Json* const found = object.find(key);
    REQUIRE(found);
    return found->string;
}

struct Outcome {
    std::string text, refusal, error;
};
Outcome outcome(const std::string& text, const ChatInput& input,
                const weights::ChatLimits& limits = weights::ChatLimits())
{
    Outcome o;
    try {
        o.text = weights::render_chat(text, input, limits);
    } catch (const ChatRefusal& refusal) {
        o.refusal = refusal.what();
    } catch (const weights::Error& error) {
        o.error = error.what();
    }
    return o;
}
// A case of the file holds "expected", or "refused" with the words of raise_exception, or "error".
void check(const Json& expected, const Outcome& o)
{
    if (expected.find("expected")) {
        CHECK(o.refusal == "");
        CHECK(o.error == "");
        CHECK(o.text == text_of(expected, "expected"));
    } else if (expected.find("refused")) {
        CHECK(o.refusal.find(text_of(expected, "refused")) != std::string::npos);
    } else {
        CHECK(o.error.find("the chat template, line ") == 0);
        CHECK(o.error.find('\n') == std::string::npos);
    }
}
ChatInput conversation(std::vector<ChatMessage> messages, bool prompt = true)
{
    ChatInput in;
    in.messages = std::move(messages);
    in.bos_token = "<s>", in.eos_token = "</s>";
    in.add_generation_prompt = prompt;
    in.now = static_cast<std::time_t>(data().find("now")->integer);
    return in;
}
const std::vector<ChatMessage> some_talk = {{"system", "be kind"}, {"user", "hi"}};

}  // namespace

TEST_CASE("chat: templates of published families")
{
    const Json* const families = data().find("families");
    REQUIRE(families);
    REQUIRE(families->items.size() >= 20);
    for (const Json& family : families->items) {
        CAPTURE(text_of(family, "name"));
        for (const Json& one : family.find("cases")->items) {
            std::vector<ChatMessage> messages;
            for (const Json& m : one.find("messages")->items)
                messages.push_back({m.items[0].string, m.items[1].string});
            CAPTURE(messages.size());
            const ChatInput in = conversation(messages, one.find("prompt")->flag);
            check(one, outcome(text_of(family, "template"), in));
        }
    }
}

TEST_CASE("chat: the rules of the language")
{
    ChatInput in = conversation(some_talk);
    in.variables = data().find("variables");
    for (const Json& rule : data().find("rules")->items) {
        const std::string& text = text_of(rule, "template");
        CAPTURE(text);
        check(rule, outcome(text, in));
    }
}

TEST_CASE("chat: well-known templates are found by their marks and by name")
{
    const auto family = [](const char* name) -> const Json& {
        for (const Json& f : data().find("families")->items)
            if (text_of(f, "name") == name) return f;
        return data();
    };
    const std::pair<const char*, const char*> pairs[] = {
        {"chatml", "chatml"}, {"smollm2", "chatml"}, {"qwen3", "chatml"}, {"llama3", "llama3"}, {"llama3.2", "llama3"},
        {"gemma", "gemma"}, {"gemma3", "gemma"}, {"deepseek-r1", "deepseek"}, {"phi3", "phi3"}, {"zephyr", "zephyr"},
        {"llama2", "llama2"}, {"mistral", "mistral"}, {"mistral-v3", "mistral"}};
    for (const auto& pair : pairs) {
        const char *const name = pair.first, *const expected = pair.second;
        const weights::ChatFamily* const found = weights::chat_family_of(text_of(family(name), "template"));
        CAPTURE(name);
        REQUIRE(found);
        CHECK(found->name == std::string(expected));
        CHECK(weights::chat_family_named(expected) == found);
        CHECK(weights::chat_family_names().find(expected) != std::string::npos);
    }
    CHECK(!weights::chat_family_of("{{ messages }}"));
    CHECK(!weights::chat_family_named("nobody"));
    // They say the same as the published ones where these can be said shortly.
    for (const char* name : {"chatml", "llama3", "gemma", "phi3", "llama2"})
        for (const bool prompt : {true, false}) {
            const ChatInput in = conversation({{"user", "a"}, {"assistant", "b"}, {"user", " c"}}, prompt);
            if (std::string(name) == "phi3" && !prompt) continue;  // the published one ends with eos_token
            CAPTURE(name);
            const Outcome published = outcome(text_of(family(name), "template"), in);
            CHECK(outcome(weights::chat_family_named(name)->text, in).text == published.text);
        }
}

TEST_CASE("chat: a template cannot ask for much")
{
    const ChatInput in = conversation(some_talk);
    const std::string deep(5000, '('), lists(5000, '['), nots = [] {
        std::string s;
        for (int i = 0; i < 5000; i++) s += "not ";
        return s;
    }();
    std::string sum = "1", filters = "n", attributes = "n", branches = "{% if no %}", blocks;
    for (int i = 0; i < 5000; i++) {
        sum += "+1", filters += "|trim", attributes += ".a";
        branches += "{% elif no %}", blocks += "{% if 1 %}";
    }
    const std::string grow = "{% for i in range(100) %}{% set ns.a = ns.a + ns.a %}{% endfor %}";
    const std::string nest =
        "{% set ns = namespace(a=[1]) %}{% for i in range(50) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}";
    const std::string all[] = {
        "{{ " + deep,
        "{{ " + lists,
        "{{ " + nots + "1 }}",
        "{{ " + sum + " }}",
        "{{ " + filters + " }}",
        "{{ " + attributes + " }}",
        blocks,
        "{% for a in range(100000000) %}{% endfor %}",
        "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}",
        "{{ 'abcdefgh' * 1000000000 }}",
        "{{ [1, 2] * 1000000000 }}",
        "{{ 9999999999999 * 9999999999999 }}",
        "{% set ns = namespace(a='x') %}" + grow,
        "{% set ns = namespace(a=[1]) %}" + grow,
        "{% set ns = namespace(a=[1]) %}{% for i in range(1000) %}{% set ns.a = [ns.a] %}{% endfor %}",
        nest + "{{ ns.a }}",
        nest + "{{ ns.a == ns.a }}",
        "{% set ns = namespace() %}{% set ns.ns = ns %}",
        "{% set ns = namespace() %}{{ [ns] }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% set a = 'x' * 10000 %}{{ a | replace('x', a) | replace('x', a) }}",
        "{% set a = 'x' * 1000000 %}{{ ([a] * 1000) | join(a) }}",
        "{{ ('a' * 20000000).split('a') | length }}",
        "{{ ('a' * 3000000) | list | length }}",
        "{{ strftime_now('%') }}{{ strftime_now('%Q') }}",
        "{{ 'x' }}" + std::string(2 << 20, ' '),
    };
    for (const std::string& text : all) {
        CAPTURE(text.substr(0, 100));
        const Outcome o = outcome(text, in);
        CHECK(o.error.find("the chat template") == 0);
        CHECK(o.error.find('\n') == std::string::npos);
    }
    CHECK(outcome(branches + "{% else %}x{% endif %}", in).text == "x");   // flat, so it may be long
    weights::ChatLimits few;
    few.steps = 100;
    CHECK(outcome("{% for a in range(50) %}x{% endfor %}", in, few).error.find("steps") != std::string::npos);
    few = weights::ChatLimits();
    few.bytes = 10000;
    CHECK(outcome("{{ 'x' * 20000 }}", in, few).error.find("too much text") != std::string::npos);
}

// Cut anywhere, with a byte changed anywhere, with pieces of others put in: a result or a sentence, in bounded time.
TEST_CASE("chat: broken templates")
{
    std::vector<std::string> all;
    for (const Json& family : data().find("families")->items) all.push_back(text_of(family, "template"));
    ChatInput in =
        conversation({{"system", "be kind"}, {"user", "hi"}, {"assistant", "</think>yes"}, {"user", "and?"}});
    in.variables = data().find("variables");
    weights::ChatLimits limits;
    limits.steps = 20000, limits.bytes = 1 << 20;
    uint64_t seed = 1;
    const auto below = [&](size_t n) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        return static_cast<size_t>(seed >> 33) % n;
    };
    size_t results = 0, sentences = 0;
    const auto run = [&](const std::string& text) {
        const Outcome o = outcome(text, in, limits);
        (o.error.empty() ? results : sentences)++;
    };
    for (const std::string& text : all)
        for (size_t n = 0; n < text.size(); n += 1 + n / 64) run(text.substr(0, n));
    for (const Json& rule : data().find("rules")->items) all.push_back(text_of(rule, "template"));
    static const char* const pieces[] = {"{{", "}}", "{%", "%}", "-", "(", ")", "[", "]", "|", ".", "'", "\"", "\\",
                                         "if ", "else", "for ", "in ", "set ", "endfor", "not ", "is ", "~", "*", "9",
                                         ",", ":", "\xff", "\n", "loop", "messages", "namespace(", "range(", "raw"};
    for (size_t i = 0; i < 20000; i++) {
        std::string text = all[below(all.size())];
        for (size_t k = 1 + below(3); k; k--) {
            const size_t at = below(text.size() + 1);
            switch (below(4)) {
            case 0: text.insert(at, pieces[below(std::size(pieces))]); break;
            case 1: text.erase(at, below(8)); break;
            case 2:
                if (at < text.size()) text[at] = static_cast<char>(below(256));
                break;
            default: {
                const std::string& other = all[below(all.size())];
                text.insert(at, other.substr(below(other.size() + 1), below(24)));
            }
            }
        }
        run(text);
    }
    CHECK(results > 1000);
    CHECK(sentences > 1000);
}
