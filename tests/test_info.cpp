// What is said of a model: its parameters are exactly those that transformers counts for the named models, its block is
// held against 12 d^2, the pictures are well-formed, and what a review says that a change costs is what the changed
// configuration counts.
#include "doctest.h"

#include "weights/import.hpp"
#include "weights/picture.hpp"
#include "weights/review.hpp"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using namespace weights;

const std::string shapes = "tests/golden-shapes/", golden = "tests/golden/";

std::vector<std::string> folders_of(const std::string& root)
{
    std::vector<std::string> out;
    if (is_directory(root))
        for (const auto& entry : std::filesystem::directory_iterator(root))
            if (is_file(join(entry.path().string(), "config.json"))) out.push_back(entry.path().string());
    std::sort(out.begin(), out.end());
    return out;
}
struct Known {                                                 // a model that is its configuration alone
    Source source;
    Counts counts;
    explicit Known(const std::string& path)
        : source(read_config_only(path)), counts(count(source, WriteOptions{}, count_parameters(path)))
    {
    }
};
std::string file_text(const std::string& path)
{
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}
// A configuration, written down or changed; gone with the object.
struct Written {
    std::string path;
    explicit Written(const std::string& text)
    {
        static int number = 0;
        path = (std::filesystem::temp_directory_path() / ("test_info_" + std::to_string(number++) + ".json")).string();
        std::ofstream(path, std::ios::binary) << text;
    }
    Written(const Written&) = delete;
    ~Written() { std::filesystem::remove(path); }
};
using Edits = std::vector<std::pair<std::string, std::string>>;
std::string edited(std::string text, const Edits& edits)
{
    for (const auto& edit : edits) {
        const size_t at = text.find(edit.first);
        REQUIRE_MESSAGE(at != std::string::npos, edit.first);
        text.replace(at, edit.first.size(), edit.second);
    }
    return text;
}
About about(const std::string& name, const Known& k)
{
    About a{name, k.source, k.counts, WriteOptions{}, transformer::Options{}, false};
    a.session.capacity = 512;
    return a;
}
const Finding& finding(const std::vector<Finding>& all, const std::string& aspect)
{
    for (const Finding& f : all)
        if (f.aspect == aspect) return f;
    throw Error("there is no finding about " + aspect);
}
size_t occurrences(const std::string& text, const std::string& part)
{
    size_t n = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) n++;
    return n;
}
void check_lines(const std::string& text)                      // 100 columns
{
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= 100, line);
}
// The error in an XML text of elements, attributes and plain text; "" if there is none.
std::string xml_error(const std::string& text)
{
    std::vector<std::string> open;
    for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
        const size_t end = text.find('>', at), next = text.find('<', at + 1);
        if (end == std::string::npos || next < end) return "< without >";
        const std::string tag = text.substr(at + 1, end - at - 1), name = tag.substr(0, tag.find_first_of(" \n/", 1));
        if (occurrences(tag, "\"") % 2) return "odd quotes: " + tag;
        if (tag[0] == '/') {
            if (open.empty() || "/" + open.back() != tag) return "closed, not open: " + tag;
            open.pop_back();
        } else if (tag.back() != '/') {
            open.push_back(name);
        }
    }
    for (size_t at = text.find('&'); at != std::string::npos; at = text.find('&', at + 1))
        if (text.compare(at, 5, "&amp;") && text.compare(at, 4, "&lt;")) return "a bare &";
    return open.empty() ? "" : "not closed: " + open.back();
}
size_t layers_in(const std::vector<BlockKind>& kinds)
{
    size_t n = 0;
    for (const BlockKind& k : kinds)
        for (const auto& [first, last] : k.ranges) n += last - first + 1;
    return n;
}

}  // namespace

TEST_CASE("info: named models have the parameters that transformers counts, total and active")
{
    size_t models = 0;
    for (const std::string& root : {shapes, std::string("../shared/golden-shapes/")}) {
        if (!is_file(root + "counts.json")) continue;
        const Json counts = read_json(root + "counts.json");
        for (const Json::Member& m : counts.members) {
            CAPTURE(root + m.key);
            const Known k(root + m.key);
            const int64_t total = m.value.find("parameters")->integer;
            const Json* active = m.value.find("active");
            CHECK(k.counts.parameters == static_cast<uint64_t>(total));
            CHECK(k.counts.active == static_cast<uint64_t>(active ? active->integer : total));
            CHECK(info_text(about(m.key, k)).find("parameters: " + digits(k.counts.parameters)) != std::string::npos);
            models++;
        }
        CHECK(folders_of(root).size() == counts.members.size());
    }
    CHECK(models >= 29);
}

TEST_CASE("info: the parts of every model sum to the whole, and every block has a kind")
{
    // Those that have a pooler, an embedding behind relative positions, or rows of a table that no position reads.
    const char* const with_other[] = {"bert", "bart", "t5", "opt", "mpnet"};
    for (const std::string& root : {shapes, golden})
        for (const std::string& folder : folders_of(root)) {
            CAPTURE(folder);
            const Known k(folder);
            uint64_t sum = 0;
            for (const auto& [name, n] : k.counts.parts) sum += n;
            CHECK(sum == k.counts.parameters);
            const bool apart = std::any_of(std::begin(with_other), std::end(with_other), [&](const char* part) {
                return folder.find(part, folder.find_last_of('/')) != std::string::npos;
            });
            CHECK((apart || !k.counts.parts.count("other")));
            for (const uint32_t stack : {0u, 1u})
                CHECK(layers_in(kinds_of(k.source, stack)) == config_of(k.source, stack).n_layers);
            const std::string text = info_text(about(folder, k)), json = info_json(about(folder, k));
            check_lines(text);
            CHECK(text.find("12 d^2 = ") != std::string::npos);
            CHECK(text.find("weights: not here") != std::string::npos);
            CHECK_NOTHROW(parse_json(json, folder));
            CHECK(json.find("\"weights_bytes\"") == std::string::npos);
        }
}

TEST_CASE("info: a block and the rule of 12 d^2")
{
    const Written torch(R"({"model_type":"TorchLayer","layer":"encoder","d_model":512,"nhead":8,"dim_feedforward":2048,
                            "activation":"relu","norm_first":false,"layer_norm_eps":1e-5})");
    const BlockKind plain = kinds_of(read_config_only(torch.path), 0).at(0);
    CHECK(plain.part("attention") == 1050624);
    CHECK(plain.part("feed_forward") == 2099712);
    CHECK(plain.part("norms") == 2048);
    CHECK(plain.total == 3152384);
    const std::string text = info_text(about("torch", Known(torch.path)));
    CHECK(text.find("attention 1,050,624 + feed-forward 2,099,712 + norms 2,048 = 3,152,384\n") != std::string::npos);
    CHECK(text.find("12 d^2 = 3,145,728; here 12.03 d^2: attention 4.01 (rule: 4)") != std::string::npos);

    // Without biases, and a gate at 4 d: 4 d^2 + 3 d 4 d + 2 d = 16 d^2 + 2 d.
    const std::string gated = R"({"model_type":"Blocks","vocab_size":100,"d_model":512,"n_layers":1,"n_heads":8,
        "n_kv_heads":8,"d_ff":2048,"norm":"rms","eps":1e-5,"block":"pre","ffn":"swiglu","rope":"half","bias":false})";
    const BlockKind swiglu = kinds_of(read_config_only(Written(gated).path), 0).at(0);
    CHECK(swiglu.part("attention") == 1048576);
    CHECK(swiglu.part("feed_forward") == 3145728);
    CHECK(swiglu.part("norms") == 1024);
    CHECK(swiglu.total == 4195328);
}

TEST_CASE("info: bytes of the cache")
{
    const std::pair<std::string, uint64_t> known[] = {
        {"llama3-8b", 2 * 8 * 128 * 32 * 2}, {"gpt2-small", 2 * 768 * 12 * 2}, {"deepseek-v3", (576 + 512) * 61 * 2},
        {"gemma2-9b", 2 * 8 * 256 * 42 * 2}, {"t5-base", 2 * 768 * 12 * 2},    {"bert-base", 0}};
    for (const auto& model : known) {
        const uint64_t f16 = model.second;
        CAPTURE(model.first);
        const Config c = read_config_only(shapes + model.first).main;
        CHECK(cache_bytes_per_token(c, DType::f16) == f16);
        CHECK(cache_bytes_per_token(c, DType::f32) == 2 * f16);
        transformer::Options one, two;                         // what a session really takes
        one.capacity = 1024, two.capacity = 2048;
        one.source_capacity = two.source_capacity = 1024;
        const auto cache = [&](const transformer::Options& o) {
            const transformer::Plan p = transformer::plan(c, Config{}, o);
            return p.at[transformer::region_cache + 1] - p.at[transformer::region_cache];
        };
        if (f16) CHECK(cache(two) - cache(one) == 1024 * f16);
    }
}

TEST_CASE("info: a checkpoint is described as what it was made from")
{
    for (const char* name : {"gemma2", "mixtral", "deepseek-v3", "phi", "whisper", "olmo-nonparam-ln", "llama-tied"}) {
        const std::string folder = golden + name;
        CAPTURE(folder);
        const Source source = read_huggingface(folder, "");
        const AlignedBytes bytes = write_to_memory(source, WriteOptions{});
        transformer::Model model;
        REQUIRE(transformer::open(bytes.data, bytes.size, &model));
        const Source again = source_of(model);
        const AlignedBytes copy = write_to_memory(again, WriteOptions{});
        CHECK(copy.size == bytes.size);
        CHECK(std::memcmp(copy.data, bytes.data, static_cast<size_t>(std::min(copy.size, bytes.size))) == 0);
        for (const uint32_t stack : {0u, 1u}) CHECK(stack_text(again, stack) == stack_text(source, stack));
        CHECK(count(again, WriteOptions{}).parameters == count_parameters(folder).total);
        CHECK(count(again, WriteOptions{}).active == count_parameters(folder).active);
    }
}

TEST_CASE("info: what is a configuration alone")
{
    CHECK(is_configuration(shapes + "llama3-8b"));
    CHECK(is_configuration(shapes + "llama3-8b/config.json"));
    CHECK(!is_configuration(golden + "gpt2"));
    CHECK(!is_configuration(golden + "llama-sharded"));
    CHECK(is_configuration(golden + "gpt2/config.json"));
    CHECK(!is_configuration(golden));
    CHECK(!is_configuration("weights/stories.bin"));
    CHECK(!is_configuration("nothing here"));
}

TEST_CASE("picture: well-formed, small, a panel for each kind of block, a plus for each sub-layer")
{
    for (const std::string& root : {shapes, golden})
        for (const std::string& folder : folders_of(root)) {
            CAPTURE(folder);
            const Known k(folder);
            const std::string svg = block_svg(k.source, k.counts);
            CHECK(xml_error(svg) == "");
            CHECK(svg.size() < 30000);
            size_t panels = 0, sums = 0, norms = 0;
            for (const uint32_t stack : {0u, 1u})
                for (const BlockKind& kind : kinds_of(k.source, stack)) {
                    panels++;
                    sums += kind.sub_layers.size() + kind.has("router");
                    for (const SubLayer& s : kind.sub_layers) norms += size_t{s.pre} + s.post + s.out;
                    norms -= kind.one_norm;
                }
            CHECK(occurrences(svg, "class=\"panel\"") == panels);
            CHECK(occurrences(svg, "h12M") >= sums);
            CHECK(occurrences(svg, "class=\"norm\"") >= norms);
            CHECK(svg.find(digits(k.counts.parameters) + " parameters") != std::string::npos);
        }
}

TEST_CASE("picture: the figures are what is drawn today")
{
    const std::pair<std::string, std::string> figures[] = {{"llama", shapes + "llama3-8b"},
                                                           {"deepseek", shapes + "deepseek-v3"},
                                                           {"original", golden + "torch-transformer-postnorm-relu"}};
    for (const auto& figure : figures) {
        CAPTURE(figure.first);
        const Known k(figure.second);
        CHECK(file_text("tests/figures/" + figure.first + ".svg") == block_svg(k.source, k.counts));
    }
}

TEST_CASE("review: a change costs what the changed configuration counts")
{
    const struct {
        std::string folder;
        const char* aspect;
        Edits edits;
    } changes[] = {
        {shapes + "llama3-8b", "attention", {{"\"num_key_value_heads\": 8", "\"num_key_value_heads\": 32"}}},
        {shapes + "llama3-8b", "head", {{"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"}}},
        {shapes + "llama3-8b", "its width", {{"14336", "18432"}}},
        {shapes + "llama3-8b", "biases", {{"attention_bias\": false", "attention_bias\": true"},
                                          {"mlp_bias\": false", "mlp_bias\": true"}}},
        {shapes + "llama3-8b", "QK-norm", {{"LlamaForCausalLM", "Qwen3ForCausalLM"}, {"\"llama\"", "\"qwen3\""}}},
        {shapes + "qwen3-8b", "QK-norm", {{"Qwen3ForCausalLM", "LlamaForCausalLM"}, {"\"qwen3\"", "\"llama\""}}},
        {shapes + "phi-3-mini", "attention", {{"\"num_key_value_heads\": 32", "\"num_key_value_heads\": 8"}}},
        {shapes + "mixtral-8x7b", "its width", {{"\"num_local_experts\": 8", "\"num_local_experts\": 9"}}},
        {golden + "qwen2moe-shared", "its width", {{"\"num_experts\": 4", "\"num_experts\": 5"}}},
        {shapes + "t5-base", "feed-forward", {{"proj\": \"relu\"", "proj\": \"gated-gelu\""}}},
        {shapes + "t5-base", "head", {{"\"vocab_size\"", "\"tie_word_embeddings\": false, \"vocab_size\""}}},
        {shapes + "t5-11b", "its width", {{"65536", "4096"}}},
        {shapes + "gpt2-small", "its width", {{"\"n_inner\": null", "\"n_inner\": 3840"}}},
        {golden + "plain-sandwich-rms", "norm placement", {{"sandwich", "pre"}}},
        {golden + "plain-sandwich-rms", "norm kind", {{"\"rms\"", "\"layer\""}}},
        {golden + "plain-sandwich-layernorm", "norm kind", {{"\"layer\"", "\"rms\""}}},
        {golden + "plain-postnorm-rms", "norm placement", {{"\"post\"", "\"pre\""}}},
        {golden + "plain-prenorm-geglu", "norm placement", {{"\"pre\"", "\"post\""}}},
        {golden + "plain-prenorm-geglu", "biases", {{"\"bias\": true", "\"bias\": false"}}},
        {golden + "plain-prenorm-geglu", "feed-forward", {{"\"geglu\"", "\"gelu\""}}},
    };
    for (const auto& change : changes) {
        CAPTURE(change.folder);
        CAPTURE(std::string(change.aspect));
        const Written written(edited(file_text(change.folder + "/config.json"), change.edits));
        const Known before(change.folder), after(written.path);
        const Finding f = finding(review(before.source, before.counts), change.aspect);
        CHECK(f.parameters == signed_of(after.counts.parameters) - signed_of(before.counts.parameters));
    }
}

TEST_CASE("review: what is as today, and what is not")
{
    const auto differs = [](const std::string& folder) {
        const Known k(folder);
        std::string out;
        for (const Finding& f : review(k.source, k.counts))
            if (!f.same) out += (out.empty() ? "" : ", ") + f.aspect;
        return out;
    };
    CHECK(differs(shapes + "llama3-8b") == "QK-norm");
    CHECK(differs(shapes + "qwen3-8b") == "");
    CHECK(differs(shapes + "deepseek-v3") == "");
    CHECK(differs(shapes + "gemma2-9b") == "QK-norm");
    CHECK(differs(shapes + "mistral-7b") == "QK-norm");
    CHECK(differs(shapes + "gpt2-small") == "norm kind, positions, attention, feed-forward, biases, QK-norm");
    CHECK(differs(shapes + "bert-base") == "norm placement, norm kind, positions, feed-forward, biases, QK-norm");
    CHECK(differs(shapes + "t5-11b") == "positions, attention, feed-forward, its width, head, QK-norm");
    CHECK(differs(golden + "olmo2") == "norm placement, its width, head");
    CHECK(differs(golden + "torch-encoderlayer-prenorm") ==
          "norm kind, positions, feed-forward, its width, biases, QK-norm");

    const Known gpt2(shapes + "gpt2-small"), t5(shapes + "t5-base"), deberta(shapes + "deberta-v3-base");
    CHECK(finding(review(gpt2.source, gpt2.counts), "positions").parameters == -1024 * 768);
    CHECK(finding(review(gpt2.source, gpt2.counts), "norm kind").parameters == -25 * 768);
    CHECK(finding(review(t5.source, t5.counts), "positions").parameters == -2 * 32 * 12);
    CHECK(finding(review(deberta.source, deberta.counts), "positions").parameters == -(512 * 768 + 2 * 768));
}

TEST_CASE("review: fits 100 columns, is JSON, and cites the references of the header")
{
    const std::string header = file_text("transformer.hpp").substr(0, 20000);
    for (const auto& [number, source] : review_sources)
        CHECK(header.find("[" + std::to_string(number) + "] " + source + ", ") != std::string::npos);
    for (const std::string& root : {shapes, golden})
        for (const std::string& folder : folders_of(root)) {
            CAPTURE(folder);
            const Known k(folder);
            const std::vector<Finding> all = review(k.source, k.counts);
            CHECK(all.size() >= 8);
            for (const Finding& f : all) {
                CAPTURE(f.aspect);
                CHECK(!f.has.empty());
                CHECK(!f.today.empty());
                CHECK(!f.change.empty());
                CHECK(f.why.find('[') != std::string::npos);   // a source
            }
            check_lines(review_text(folder, k.source, k.counts, all));
            const Json json = parse_json(review_json(folder, k.source, k.counts, all), folder);
            CHECK(json.find("findings")->items.size() == all.size());
            CHECK(json.find("findings")->items[0].find("sources")->items.size() > 0);
        }
}

TEST_CASE("info and review: odd numbers in a configuration end in a result or a sentence")
{
    const std::string text = file_text(shapes + "mixtral-8x7b/config.json");
    for (const char* key : {"hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers",
                            "num_key_value_heads", "num_experts_per_tok", "num_local_experts", "vocab_size",
                            "max_position_embeddings", "head_dim"})
        for (const char* value : {"0", "1", "3", "1000", "2147483647", "-1", "null", "\"x\""}) {
            CAPTURE(std::string(key));
            CAPTURE(std::string(value));
            const size_t at = text.find(std::string("\"") + key + "\": "), from = text.find(": ", at) + 2;
            REQUIRE(at != std::string::npos);
            const Written config(text.substr(0, from) + value + text.substr(text.find_first_of(",\n", from)));
            try {
                const Known k(config.path);
                info_json(about("x", k));
                CHECK(xml_error(block_svg(k.source, k.counts)) == "");
                review_text("x", k.source, k.counts, review(k.source, k.counts));
            } catch (const Error& error) {
                CHECK(std::string(error.what()).size() > 10);
            }
        }
}
