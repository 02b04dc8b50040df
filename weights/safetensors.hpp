// weights/safetensors.hpp - the tensors of a model.safetensors, or of the shards that an index names
//
// The file: 8 bytes little-endian n, n bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...},
// then the data that the offsets count from. Everything is checked in 64 bits when a folder is opened: nothing outside
// the file, no two tensors over each other, no bytes that belong to none, as many bytes as shape and type ask for.
#ifndef TRANSFORMER_WEIGHTS_SAFETENSORS_HPP
#define TRANSFORMER_WEIGHTS_SAFETENSORS_HPP

#include "json.hpp"

#include "../transformer.hpp"

#include <set>
#include <unordered_map>

namespace weights {

using Shape = std::vector<uint64_t>;

inline std::string shape_text(const Shape& shape)
{
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); i++) text += (i ? ", " : "") + std::to_string(shape[i]);
    return text + ")";
}

inline uint64_t elements(const Shape& shape)
{
    uint64_t n = 1;
    for (const uint64_t size : shape) n = mul_sat(n, size);
    return n;
}

struct StoredTensor {
    enum class Type : uint8_t { f32, f16, bf16, f64, other };
    Type type = Type::other;
    std::string type_name, path;    // of the file that it stands in
    Shape shape;
    const unsigned char* data = nullptr;

    // The precision that it keeps in a checkpoint.
    transformer::DType kept() const
    {
        return type == Type::f16 ? transformer::DType::f16 : type == Type::bf16 ? transformer::DType::bf16
            : transformer::DType::f32;
    }
    // n elements from `first` on, `stride` apart.
    void read(uint64_t first, uint64_t stride, uint64_t n, float* out) const
    {
        const auto each = [&](uint32_t width, auto value) {
            const unsigned char* p = data + first * width;
            for (uint64_t i = 0; i < n; i++, p += stride * width) out[i] = value(p);
        };
        switch (type) {
        case Type::f32: return each(4, load_f32);
        case Type::f16: return each(2, [](const unsigned char* p) { return transformer::f16_to_f32(load_u16(p)); });
        case Type::bf16: return each(2, [](const unsigned char* p) { return transformer::bf16_to_f32(load_u16(p)); });
        case Type::f64:
            return each(8, [](const unsigned char* p) {
                const uint64_t word = load_u64(p);
                double value;
                std::memcpy(&value, &word, sizeof value);
                return static_cast<float>(value);
            });
        case Type::other: break;
        }
        throw Error(path + ": a tensor of type " + printable(type_name) + " cannot be read");
    }
};

class Safetensors {
public:
    // A folder with model.safetensors, or with model.safetensors.index.json and its shards.
    explicit Safetensors(const std::string& folder)
    {
        const std::string single = join(folder, "model.safetensors"), index = single + ".index.json";
        if (is_file(single)) {
            add_file(single);
        } else if (is_file(index)) {
            add_index(folder, index);
        } else {
            const bool torch = is_file(join(folder, "pytorch_model.bin"))
                || is_file(join(folder, "pytorch_model.bin.index.json"));
            throw Error(folder + ": there is no model.safetensors" +
                        (torch ? "; pytorch_model.bin is not read, save the model again with safe_serialization=True"
                            : " in this folder"));
        }
    }

    const StoredTensor* find(const std::string& name) const
    {
        const auto at = tensors_.find(name);
        return at == tensors_.end() ? nullptr : &at->second;
    }
    const std::unordered_map<std::string, StoredTensor>& all() const { return tensors_; }

private:
    static constexpr uint64_t max_header = 100000000;          // as the format's own library allows

    void add_index(const std::string& folder, const std::string& path)
    {
        const Json json = read_json(path);
        const Json* map = json.find("weight_map");
        if (!map || map->kind != Json::object) throw Error(path + ": has no weight_map");
        std::set<std::string> shards;
        for (const Json::Member& m : map->members) {
            const std::string& name = m.value.string;
            if (m.value.kind != Json::text || name.empty() || name.find_first_of("/\\") != std::string::npos)
                throw Error(path + ": the tensor " + printable(m.key) + " names no file of this folder");
            if (!shards.insert(name).second) continue;
            if (!is_file(join(folder, name)))
                throw Error(path + ": the shard " + printable(name) + " is not in the folder");
            add_file(join(folder, name));
        }
        for (const Json::Member& m : map->members)
            if (!find(m.key))
                throw Error(path + ": the tensor " + printable(m.key) + " is not in its shard "
                    + printable(m.value.string));
    }

    void add_file(const std::string& path)
    {
        const File file = map_file(path);
        files_.push_back(file);
        if (file->size < 8)
            throw Error(path + ": " + std::to_string(file->size) + " bytes are too short for a safetensors file");
        const uint64_t header = load_u64(file->data);
        if (header > max_header || header > file->size - 8)
            throw Error(path + ": its header says that it is " + std::to_string(header) + " bytes long, of "
                + std::to_string(file->size) +
                        " in the file; the file is truncated or no safetensors file");
        const Json json = parse_json({reinterpret_cast<const char*>(file->data) + 8, static_cast<size_t>(header)}, path,
            4000000);
        if (json.kind != Json::object) throw Error(path + ": its header is no JSON object");

        const uint64_t size = file->size - 8 - header;         // of the data
        struct Span {
            uint64_t begin, end;
            const std::string* name;
        };
        std::vector<Span> spans;
        for (const Json::Member& m : json.members) {
            if (m.key == "__metadata__") continue;
            const std::string where = path + ": the tensor " + printable(m.key, 200);
            const Json *type = m.value.find("dtype"), *shape = m.value.find("shape"),
                *offsets = m.value.find("data_offsets");
            if (!type || type->kind != Json::text || !shape || shape->kind != Json::list || !offsets
                || offsets->items.size() != 2)
                throw Error(where + " has no dtype, shape and data_offsets");
            StoredTensor t;
            t.path = path;
            t.type_name = type->string;
            for (const Json& n : shape->items) t.shape.push_back(count(n, where));
            const uint64_t begin = count(offsets->items[0], where), end = count(offsets->items[1], where);
            if (begin > end || end > size)
                throw Error(where + " ends at byte " + std::to_string(end) + " of " + std::to_string(size)
                    + " bytes of data; the file is truncated or damaged");
            const uint64_t bits = bits_of(t);
            if (bits && (mul_sat(elements(t.shape), bits) == UINT64_MAX
                || mul_sat(elements(t.shape), bits) != mul_sat(end - begin, 8)))
                throw Error(where + " of shape " + shape_text(t.shape) + " and type " + printable(t.type_name)
                    + " cannot fill " +
                            std::to_string(end - begin) + " bytes");
            t.data = file->data + 8 + header + begin;
            spans.push_back({begin, end, &m.key});
            std::string name = m.key;                          // names of before 2019
            for (const auto& [old, now] : {std::pair("LayerNorm.gamma", "LayerNorm.weight"),
                std::pair("LayerNorm.beta", "LayerNorm.bias")})
                if (name.size() >= std::strlen(old) && name.compare(name.size() - std::strlen(old), std::string::npos,
                    old) == 0)
                    name.replace(name.size() - std::strlen(old), std::string::npos, now);
            if (!tensors_.emplace(std::move(name), std::move(t)).second)
                throw Error(where + " stands twice in the model");
        }
        std::sort(spans.begin(), spans.end(), [](const Span& a,
            const Span& b) { return a.begin != b.begin ? a.begin < b.begin : a.end < b.end; });
        uint64_t at = 0;
        for (const Span& s : spans) {
            if (s.begin < at)
                throw Error(path + ": the tensor " + printable(*s.name, 200) + " overlaps the one before it");
            if (s.begin > at) throw Error(path + ": no tensor owns the bytes before " + printable(*s.name, 200));
            at = s.end;
        }
        if (at != size) throw Error(path + ": no tensor owns the last " + std::to_string(size - at) + " bytes");
    }

    static uint64_t count(const Json& n, const std::string& where)
    {
        if (!n.exact || n.integer < 0) throw Error(where + " has a size that is no number");
        return static_cast<uint64_t>(n.integer);
    }
    // Bits of one element, 0 for types that nobody here has heard of. Sets `type`.
    static uint64_t bits_of(StoredTensor& t)
    {
        using Type = StoredTensor::Type;
        struct Known {
            const char* name;
            uint64_t bits;
            Type type;
        };
        static const Known known[] = {
            {"F32", 32, Type::f32},      {"F16", 16, Type::f16},      {"BF16", 16, Type::bf16},
            {"F64", 64, Type::f64},      {"I64", 64, Type::other},    {"I32", 32, Type::other},
            {"I16", 16, Type::other},    {"I8", 8, Type::other},      {"U64", 64, Type::other},
            {"U32", 32, Type::other},    {"U16", 16, Type::other},    {"U8", 8, Type::other},
            {"F8_E4M3", 8, Type::other}, {"F8_E5M2", 8, Type::other}, {"F8_E8M0", 8, Type::other},
            {"BOOL", 8, Type::other},
        };
        for (const Known& k : known)
            if (t.type_name == k.name) {
                t.type = k.type;
                return k.bits;
            }
        return 0;
    }

    std::vector<File> files_;
    std::unordered_map<std::string, StoredTensor> tensors_;
};

}  // namespace weights
#endif
