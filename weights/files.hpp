// weights/files.hpp - what every reader needs from the host: whole files as bytes, paths, little-endian words
//
// A model is mapped, not read, where the system can do that: a file larger than memory can still be imported, and pages
// that are not needed cost nothing. TRANSFORMER_NO_MMAP (or a system without mmap) reads it instead. Sizes are 64-bit
// throughout.
#ifndef TRANSFORMER_WEIGHTS_FILES_HPP
#define TRANSFORMER_WEIGHTS_FILES_HPP

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#if !defined(TRANSFORMER_NO_MMAP) && !defined(_WIN32) && defined(__has_include)
#if __has_include(<sys/mman.h>)
#define TRANSFORMER_HAS_MMAP 1
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#endif

namespace weights {

// One sentence: what is wrong, where, and what to do.
struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// ---- Numbers --------------------------------------------------------------------------------------------------------

inline uint16_t load_u16(const unsigned char* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
inline uint32_t load_u32(const unsigned char* p) { return load_u16(p) | static_cast<uint32_t>(load_u16(p + 2)) << 16; }
inline uint64_t load_u64(const unsigned char* p) { return load_u32(p) | static_cast<uint64_t>(load_u32(p + 4)) << 32; }
inline int32_t load_i32(const unsigned char* p)
{
    const uint32_t word = load_u32(p);
    int32_t value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}
inline float load_f32(const unsigned char* p)
{
    const uint32_t word = load_u32(p);
    float value;
    std::memcpy(&value, &word, sizeof value);
    return value;
}
inline void store_u16(unsigned char* p, uint16_t value)
{
    p[0] = static_cast<unsigned char>(value & 255);
    p[1] = static_cast<unsigned char>(value >> 8);
}
inline void store_u32(unsigned char* p, uint32_t value)
{
    store_u16(p, static_cast<uint16_t>(value & 0xffff));
    store_u16(p + 2, static_cast<uint16_t>(value >> 16));
}
inline void store_u64(unsigned char* p, uint64_t value)
{
    store_u32(p, static_cast<uint32_t>(value & 0xffffffff));
    store_u32(p + 4, static_cast<uint32_t>(value >> 32));
}
inline void store_f32(unsigned char* p, float value)
{
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    store_u32(p, word);
}

// Sizes from a file's header saturate instead of wrapping: a sum or product that does not fit in 64 bits stays
// UINT64_MAX, which no file is as long as, so one comparison at the end is enough.
inline uint64_t add_sat(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
inline uint64_t mul_sat(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

// ---- Memory ---------------------------------------------------------------------------------------------------------

// Bytes at a multiple of 64, owned once. Not initialised.
struct AlignedBytes {
    unsigned char* data = nullptr;
    uint64_t size = 0;

    AlignedBytes() = default;
    explicit AlignedBytes(uint64_t n) : size(n)
    {
        if (n <= std::numeric_limits<size_t>::max() - 64)
            data = static_cast<unsigned char*>(::operator new(static_cast<size_t>(n + (n == 0)), std::align_val_t{64},
                std::nothrow));
        if (!data) throw Error("there is no room for " + std::to_string(n) + " bytes in memory");
#if defined(TRANSFORMER_HAS_MMAP) && defined(MADV_HUGEPAGE)
        // A large model is there several times sooner in large pages; it is no error where the system has none.
        constexpr uint64_t page = 1 << 21;
        const uint64_t before = (page - reinterpret_cast<uintptr_t>(data) % page) % page;
        if (n >= before + page)
            ::madvise(data + before, static_cast<size_t>((n - before) / page * page), MADV_HUGEPAGE);
#endif
    }
    AlignedBytes(AlignedBytes&& other) noexcept : data(std::exchange(other.data, nullptr)),
        size(std::exchange(other.size, 0)) {}
    AlignedBytes& operator=(AlignedBytes&& other) noexcept
    {
        std::swap(data, other.data);
        std::swap(size, other.size);
        return *this;
    }
    ~AlignedBytes() { ::operator delete(data, std::align_val_t{64}); }
};

// ---- Paths ----------------------------------------------------------------------------------------------------------

inline bool is_directory(const std::string& path)
{
    std::error_code error;
    return std::filesystem::is_directory(path, error);
}
inline bool is_file(const std::string& path)
{
    std::error_code error;
    return std::filesystem::is_regular_file(path, error);
}
inline std::string join(const std::string& folder, const std::string& name)
{
    return (std::filesystem::path(folder) / name).string();
}
// The folder that a path stands in, "." for a bare name.
inline std::string folder_of(const std::string& path)
{
    const std::string folder = std::filesystem::path(path).parent_path().string();
    return folder.empty() ? "." : folder;
}
// Text out of a file, fit for a message: control characters and what is not ASCII as \xNN, cut after `limit` bytes.
inline std::string printable(const std::string& text, size_t limit = 60)
{
    static const char digits[] = "0123456789abcdef";
    std::string out;
    for (size_t i = 0; i < text.size(); i++) {
        if (i == limit) return out + "...";
        const unsigned char c = static_cast<unsigned char>(text[i]);
        if (c >= 32 && c < 127)
            out += text[i];
        else
            out += {'\\', 'x', digits[c >> 4], digits[c & 15]};
    }
    return out;
}

// ---- Files ----------------------------------------------------------------------------------------------------------

// A whole file, read only. Readers hold the shared_ptr in what they return, so that the bytes live as long as someone
// reads.
struct MappedFile {
    const unsigned char* data = nullptr;
    uint64_t size = 0;

    MappedFile() = default;
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;
    ~MappedFile()
    {
#ifdef TRANSFORMER_HAS_MMAP
        if (mapping) munmap(mapping, static_cast<size_t>(size));
#endif
    }
    void* mapping = nullptr;        // one of these two owns the bytes
    AlignedBytes copy;
};
using File = std::shared_ptr<const MappedFile>;

inline Error file_error(const std::string& path, const char* what, int code)
{
    // What a 32-bit build without 64-bit file calls gets for a file of 2 GiB or more.
    if (code == EOVERFLOW) return Error(path + ": too large for this platform; use a 64-bit build");
    return Error(path + ": " + what + ": " + std::generic_category().message(code));
}
inline Error too_large(const std::string& path, uint64_t size)
{
    return Error(path + ": " + std::to_string(size) + " bytes are too large for this platform; use a 64-bit build");
}

// The plain way: all bytes into memory.
inline File read_file(const std::string& path)
{
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    if (!std::filesystem::exists(status)) throw Error(path + ": there is no such file");
    if (std::filesystem::is_directory(status)) throw Error(path + ": is a folder, a file is needed");
    if (!std::filesystem::is_regular_file(status)) throw Error(path + ": is a pipe or device, a file is needed");
    const uint64_t size = std::filesystem::file_size(path, error);
    if (error) throw Error(path + ": its size cannot be read: " + error.message());
    if (size > std::numeric_limits<size_t>::max() / 2) throw too_large(path, size);
    std::ifstream stream(path, std::ios::binary);
    if (!stream) throw file_error(path, "cannot be opened", errno);
    auto file = std::make_shared<MappedFile>();
    file->copy = AlignedBytes(size);
    // Not larger pieces: a single read of 2 GiB or more is cut short by some systems.
    for (uint64_t at = 0; at < size;) {
        const uint64_t piece = size - at < (1u << 30) ? size - at : (1u << 30);
        stream.read(reinterpret_cast<char*>(file->copy.data) + at, static_cast<std::streamsize>(piece));
        if (static_cast<uint64_t>(stream.gcount()) != piece)
            throw Error(path + ": could be read up to byte "
                + std::to_string(at + static_cast<uint64_t>(stream.gcount()))
                + " of " +
                        std::to_string(size) + " only");
        at += piece;
    }
    file->data = file->copy.data;
    file->size = size;
    return file;
}

#ifdef TRANSFORMER_HAS_MMAP
inline File map_file(const std::string& path)
{
    // Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        throw file_error(path, "cannot be opened", errno);
    }
    struct Closer {
        int descriptor;
        ~Closer() { ::close(descriptor); }
    } closer{descriptor};
    struct stat info;
    if (::fstat(descriptor, &info) != 0) throw file_error(path, "its size cannot be read", errno);
    if (S_ISDIR(info.st_mode)) throw Error(path + ": is a folder, a file is needed");
    if (!S_ISREG(info.st_mode)) throw Error(path + ": is a pipe or device, a file is needed");
    auto file = std::make_shared<MappedFile>();
    const uint64_t size = static_cast<uint64_t>(info.st_size);
    if (size == 0) return read_file(path);                     // nothing to map; some special files say 0 and hold text
    if (size > std::numeric_limits<size_t>::max() / 2) throw too_large(path, size);
    void* mapping = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (mapping == MAP_FAILED) return read_file(path);         // some file systems cannot map
#if defined(MADV_HUGEPAGE)
    // Large pages are read a third faster. It is no error where the system has none for files.
    ::madvise(mapping, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
    file->mapping = mapping;
    file->data = static_cast<const unsigned char*>(mapping);
    file->size = size;
    return file;
}
#else
inline File map_file(const std::string& path) { return read_file(path); }
#endif

// A small file as text; more than `limit` bytes are refused.
inline std::string read_text(const std::string& path, uint64_t limit = uint64_t{1} << 30)
{
    const File file = map_file(path);
    if (file->size > limit)
        throw Error(path + ": " + std::to_string(file->size) + " bytes are more than the " + std::to_string(limit)
            + " expected of such a file");
    return std::string(reinterpret_cast<const char*>(file->data), static_cast<size_t>(file->size));
}

}  // namespace weights
#endif
