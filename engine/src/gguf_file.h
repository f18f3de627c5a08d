// A mapped GGUF file: keys, tensor descriptions and their bytes.
//
// The reader is our own because gguf.h aborts the process on some malformed files (an empty key, a zero
// dimension, an alignment of the wrong type); here every field is checked against the bytes that are left,
// and the error says which field at which offset.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ggml.h"
#include "gguf.h"

namespace assay {

// A read-only mapping of a whole file. Moves, never copies.
class FileMapping {
public:
    explicit FileMapping(const std::string& path);
    FileMapping(FileMapping&& other) noexcept;
    FileMapping& operator=(FileMapping&&) = delete;
    ~FileMapping();
    const uint8_t* data() const { return data_; }
    size_t size() const { return size_; }
    // Gives the resident pages that lie wholly inside the range back; they are read again when touched.
    void drop(uint64_t offset, uint64_t bytes) const;

private:
    const uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

struct GgufTensor {
    std::string name;
    ggml_type type = GGML_TYPE_F32;
    int n_dims = 0;
    int64_t ne[4] = {1, 1, 1, 1};
    uint64_t offset = 0;  // from the start of the file
    uint64_t bytes = 0;
};

class GgufFile {
public:
    // Throws Failure(ASSAY_FILE) for a missing, truncated or malformed file.
    explicit GgufFile(const std::string& path);

    const FileMapping& mapping() const { return mapping_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }
    const GgufTensor* find_tensor(std::string_view name) const;

    bool has(std::string_view key) const { return values_.contains(std::string(key)); }
    // Scalars: nullopt where the key is absent, Failure where it holds another kind of value. Integers accept
    // every GGUF integer type that represents the value.
    std::optional<uint64_t> unsigned_value(std::string_view key) const;
    std::optional<double> real_value(std::string_view key) const;
    std::optional<bool> bool_value(std::string_view key) const;
    std::optional<std::string> text_value(std::string_view key) const;
    std::optional<std::vector<std::string>> text_array(std::string_view key) const;
    std::optional<std::vector<int64_t>> integer_array(std::string_view key) const;
    std::optional<std::vector<bool>> bool_array(std::string_view key) const;
    bool is_array(std::string_view key) const;

private:
    struct Value {
        gguf_type type = GGUF_TYPE_UINT8;  // of the elements where is_array
        bool is_array = false;
        uint64_t count = 1;
        const uint8_t* data = nullptr;  // encoded elements inside the mapping
    };
    class Cursor;

    void read_keys(Cursor& cursor, uint64_t n_keys);
    void read_tensors(Cursor& cursor, uint64_t n_tensors);
    const Value* find(std::string_view key) const;
    [[noreturn]] void refuse(const std::string& what) const;
    [[noreturn]] void refuse_type(std::string_view key, const Value& value, const char* needed) const;

    std::string path_;
    FileMapping mapping_;
    std::unordered_map<std::string, Value> values_;
    std::vector<GgufTensor> tensors_;
    std::unordered_map<std::string_view, size_t> tensor_index_;
};

}  // namespace assay
