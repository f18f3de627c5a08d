#include "gguf_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "failure.h"

namespace assay {
namespace {

size_t scalar_size(gguf_type type) {
    switch (type) {
        case GGUF_TYPE_UINT8:
        case GGUF_TYPE_INT8:
        case GGUF_TYPE_BOOL: return 1;
        case GGUF_TYPE_UINT16:
        case GGUF_TYPE_INT16: return 2;
        case GGUF_TYPE_UINT32:
        case GGUF_TYPE_INT32:
        case GGUF_TYPE_FLOAT32: return 4;
        case GGUF_TYPE_UINT64:
        case GGUF_TYPE_INT64:
        case GGUF_TYPE_FLOAT64: return 8;
        default: return 0;
    }
}

template <class T>
T load(const uint8_t* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

// The integer at `bytes`; nullopt where the type is no integer or the value does not fit into int64_t.
std::optional<int64_t> load_integer(gguf_type type, const uint8_t* bytes) {
    switch (type) {
        case GGUF_TYPE_UINT8: return load<uint8_t>(bytes);
        case GGUF_TYPE_INT8: return load<int8_t>(bytes);
        case GGUF_TYPE_UINT16: return load<uint16_t>(bytes);
        case GGUF_TYPE_INT16: return load<int16_t>(bytes);
        case GGUF_TYPE_UINT32: return load<uint32_t>(bytes);
        case GGUF_TYPE_INT32: return load<int32_t>(bytes);
        case GGUF_TYPE_INT64: return load<int64_t>(bytes);
        case GGUF_TYPE_UINT64: {
            const auto value = load<uint64_t>(bytes);
            if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
            return static_cast<int64_t>(value);
        }
        default: return std::nullopt;
    }
}

std::string printable(std::string_view text) {
    std::string out;
    for (const char c : text.substr(0, 80)) out += (c >= 0x20 && c < 0x7F) ? c : '?';
    return out;
}

}  // namespace

FileMapping::FileMapping(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw Failure(ASSAY_FILE, "cannot open the model '" + path + "': " + std::strerror(errno));
    struct stat status{};
    if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(fd);
        throw Failure(ASSAY_FILE, "the model '" + path + "' is not a regular file");
    }
    size_ = static_cast<size_t>(status.st_size);
    if (size_ > 0) {
        void* address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
        if (address == MAP_FAILED) {
            const int error = errno;
            ::close(fd);
            throw Failure(ASSAY_FILE, "cannot map the model '" + path + "': " + std::strerror(error));
        }
        data_ = static_cast<const uint8_t*>(address);
    }
    ::close(fd);
}

FileMapping::FileMapping(FileMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

FileMapping::~FileMapping() {
    if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

void FileMapping::drop(uint64_t offset, uint64_t bytes) const {
    const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t first = (offset + page - 1) / page * page;
    const uint64_t last = (offset + bytes) / page * page;
    if (first < last) ::madvise(const_cast<uint8_t*>(data_) + first, last - first, MADV_DONTNEED);
}

// Reads forward through the header and refuses to pass the end of the file.
class GgufFile::Cursor {
public:
    Cursor(const GgufFile& file, const uint8_t* data, size_t size) : file_(file), data_(data), size_(size) {}

    uint64_t offset() const { return offset_; }
    uint64_t left() const { return size_ - offset_; }

    const uint8_t* take(uint64_t bytes, const char* what) {
        if (bytes > left()) {
            file_.refuse(std::string("the file ends inside ") + what + " at byte " + std::to_string(offset_) +
                         " (needs " + std::to_string(bytes) + " bytes, has " + std::to_string(left()) +
                         "); it is truncated or damaged");
        }
        const uint8_t* start = data_ + offset_;
        offset_ += bytes;
        return start;
    }
    template <class T>
    T number(const char* what) {
        return load<T>(take(sizeof(T), what));
    }
    std::string_view text(const char* what) {
        const auto length = number<uint64_t>(what);
        return {reinterpret_cast<const char*>(take(length, what)), static_cast<size_t>(length)};
    }

private:
    const GgufFile& file_;
    const uint8_t* data_;
    size_t size_;
    uint64_t offset_ = 0;
};

GgufFile::GgufFile(const std::string& path) : path_(path), mapping_(path) {
    Cursor cursor(*this, mapping_.data(), mapping_.size());
    if (cursor.left() < 4 || std::memcmp(cursor.take(4, "the magic"), GGUF_MAGIC, 4) != 0) {
        refuse("it does not start with the magic 'GGUF', so it is not a GGUF file");
    }
    const auto version = cursor.number<uint32_t>("the version");
    if (version != 2 && version != 3) {
        const bool is_swapped = (version & 0xFFFFU) == 0;
        refuse("GGUF version " + std::to_string(version) + " is not supported, 2 or 3 is needed" +
               (is_swapped ? " (the file looks big-endian)" : ""));
    }
    const auto n_tensors = cursor.number<uint64_t>("the tensor count");
    const auto n_keys = cursor.number<uint64_t>("the key count");
    // The smallest key takes 13 bytes and the smallest tensor description 32, which bounds both counts.
    if (n_keys > cursor.left() / 13) refuse("the key count " + std::to_string(n_keys) + " does not fit into the file");
    if (n_tensors > cursor.left() / 32) {
        refuse("the tensor count " + std::to_string(n_tensors) + " does not fit into the file");
    }
    read_keys(cursor, n_keys);
    read_tensors(cursor, n_tensors);
}

void GgufFile::read_keys(Cursor& cursor, uint64_t n_keys) {
    values_.reserve(n_keys);
    for (uint64_t i = 0; i < n_keys; ++i) {
        const uint64_t at = cursor.offset();
        const std::string key(cursor.text("a key"));
        if (key.empty() || key.size() > 65535) {
            refuse("key " + std::to_string(i) + " at byte " + std::to_string(at) + " has " +
                   std::to_string(key.size()) + " bytes, 1 to 65535 are allowed");
        }
        Value value;
        auto type = cursor.number<uint32_t>("a value type");
        if (type == GGUF_TYPE_ARRAY) {
            value.is_array = true;
            type = cursor.number<uint32_t>("an array type");
            value.count = cursor.number<uint64_t>("an array length");
        }
        if (type >= GGUF_TYPE_COUNT || type == GGUF_TYPE_ARRAY) {
            refuse("key '" + printable(key) + "' has the unknown value type " + std::to_string(type) +
                   (value.is_array ? " in an array" : ""));
        }
        value.type = static_cast<gguf_type>(type);
        value.data = cursor.take(0, "a value");
        const size_t size = scalar_size(value.type);
        if (value.type == GGUF_TYPE_STRING) {
            if (value.count > cursor.left() / 8) {
                refuse("the array '" + printable(key) + "' of " + std::to_string(value.count) +
                       " strings does not fit into the file");
            }
            for (uint64_t k = 0; k < value.count; ++k) cursor.text("a string value");
        } else {
            if (value.count > cursor.left() / size)
                refuse("the value of '" + printable(key) + "' does not fit into the file");
            cursor.take(value.count * size, "a value");
        }
        if (!values_.emplace(key, value).second) refuse("key '" + printable(key) + "' stands in the file twice");
    }
}

void GgufFile::read_tensors(Cursor& cursor, uint64_t n_tensors) {
    const uint64_t alignment = unsigned_value("general.alignment").value_or(GGUF_DEFAULT_ALIGNMENT);
    if (alignment < 8 || alignment > (1U << 20) || (alignment & (alignment - 1)) != 0) {
        refuse("general.alignment is " + std::to_string(alignment) + ", a power of two from 8 to 1048576 is needed");
    }
    tensors_.reserve(n_tensors);
    for (uint64_t i = 0; i < n_tensors; ++i) {
        GgufTensor tensor;
        tensor.name = cursor.text("a tensor name");
        const std::string label = "tensor '" + printable(tensor.name) + "'";
        if (tensor.name.empty() || tensor.name.size() >= GGML_MAX_NAME || tensor.name.find('\0') != std::string::npos) {
            refuse("tensor " + std::to_string(i) + " has a name of " + std::to_string(tensor.name.size()) +
                   " bytes, 1 to " + std::to_string(GGML_MAX_NAME - 1) + " without zeros are allowed");
        }
        const auto n_dims = cursor.number<uint32_t>("a tensor's dimension count");
        if (n_dims < 1 || n_dims > 4)
            refuse(label + " has " + std::to_string(n_dims) + " dimensions, 1 to 4 are allowed");
        tensor.n_dims = static_cast<int>(n_dims);
        unsigned __int128 n_elements = 1;
        for (uint32_t d = 0; d < n_dims; ++d) {
            tensor.ne[d] = cursor.number<int64_t>("a tensor's dimensions");
            if (tensor.ne[d] < 1 || tensor.ne[d] > (INT64_C(1) << 40)) {
                refuse(label + " has the size " + std::to_string(tensor.ne[d]) + " in dimension " + std::to_string(d));
            }
            n_elements *= static_cast<uint64_t>(tensor.ne[d]);
            if (n_elements > (static_cast<unsigned __int128>(1) << 48)) refuse(label + " has too many elements");
        }
        const auto type = cursor.number<uint32_t>("a tensor's type");
        if (type >= GGML_TYPE_COUNT || ggml_blck_size(static_cast<ggml_type>(type)) <= 0 ||
            ggml_type_size(static_cast<ggml_type>(type)) == 0) {
            refuse(label + " has the unknown type " + std::to_string(type));
        }
        tensor.type = static_cast<ggml_type>(type);
        const int64_t block = ggml_blck_size(tensor.type);
        if (tensor.ne[0] % block != 0) {
            refuse(label + " of type " + ggml_type_name(tensor.type) + " has rows of " + std::to_string(tensor.ne[0]) +
                   " elements, a multiple of " + std::to_string(block) + " is needed");
        }
        tensor.bytes = static_cast<uint64_t>(n_elements) / static_cast<uint64_t>(block) * ggml_type_size(tensor.type);
        tensor.offset = cursor.number<uint64_t>("a tensor's offset");
        if (tensor.offset % alignment != 0) {
            refuse(label + " stands at offset " + std::to_string(tensor.offset) + ", a multiple of " +
                   std::to_string(alignment) + " is needed");
        }
        tensors_.push_back(std::move(tensor));
    }
    const uint64_t data_start = (cursor.offset() + alignment - 1) / alignment * alignment;
    for (size_t i = 0; i < tensors_.size(); ++i) {
        GgufTensor& tensor = tensors_[i];
        const uint64_t room = mapping_.size() > data_start ? mapping_.size() - data_start : 0;
        if (tensor.offset > room || tensor.bytes > room - tensor.offset) {
            refuse("tensor '" + printable(tensor.name) + "' needs bytes " + std::to_string(tensor.offset) + " to " +
                   std::to_string(tensor.offset + tensor.bytes) + " of the data, the file holds " +
                   std::to_string(room) + "; it is truncated or damaged");
        }
        tensor.offset += data_start;
        if (!tensor_index_.emplace(tensor.name, i).second) {
            refuse("tensor '" + printable(tensor.name) + "' stands in the file twice");
        }
    }
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto found = tensor_index_.find(name);
    return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

const GgufFile::Value* GgufFile::find(std::string_view key) const {
    const auto found = values_.find(std::string(key));
    return found == values_.end() ? nullptr : &found->second;
}

void GgufFile::refuse(const std::string& what) const {
    throw Failure(ASSAY_FILE, "cannot read the model '" + path_ + "': " + what);
}

void GgufFile::refuse_type(std::string_view key, const Value& value, const char* needed) const {
    const char* name = gguf_type_name(value.type);
    refuse("key '" + printable(key) + "' holds " + (value.is_array ? "an array of " : "a value of type ") +
           (name != nullptr ? name : "?") + ", " + needed + " is needed");
}

bool GgufFile::is_array(std::string_view key) const {
    const Value* value = find(key);
    return value != nullptr && value->is_array;
}

std::optional<uint64_t> GgufFile::unsigned_value(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array) {
        if (value->type == GGUF_TYPE_UINT64) return load<uint64_t>(value->data);
        const auto number = load_integer(value->type, value->data);
        if (number && *number >= 0) return static_cast<uint64_t>(*number);
    }
    refuse_type(key, *value, "a whole number from 0");
}

std::optional<double> GgufFile::real_value(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array && value->type == GGUF_TYPE_FLOAT32) return load<float>(value->data);
    if (!value->is_array && value->type == GGUF_TYPE_FLOAT64) return load<double>(value->data);
    refuse_type(key, *value, "a real number");
}

std::optional<bool> GgufFile::bool_value(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array && value->type == GGUF_TYPE_BOOL) return load<uint8_t>(value->data) != 0;
    refuse_type(key, *value, "a boolean");
}

std::optional<std::string> GgufFile::text_value(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (value->is_array || value->type != GGUF_TYPE_STRING) refuse_type(key, *value, "a string");
    const auto length = load<uint64_t>(value->data);
    return std::string(reinterpret_cast<const char*>(value->data + 8), static_cast<size_t>(length));
}

std::optional<std::vector<std::string>> GgufFile::text_array(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array || value->type != GGUF_TYPE_STRING) refuse_type(key, *value, "an array of strings");
    std::vector<std::string> out;
    out.reserve(value->count);
    const uint8_t* at = value->data;
    for (uint64_t i = 0; i < value->count; ++i) {
        const auto length = static_cast<size_t>(load<uint64_t>(at));
        out.emplace_back(reinterpret_cast<const char*>(at + 8), length);
        at += 8 + length;
    }
    return out;
}

std::optional<std::vector<int64_t>> GgufFile::integer_array(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array) refuse_type(key, *value, "an array of whole numbers");
    std::vector<int64_t> out;
    out.reserve(value->count);
    const size_t size = scalar_size(value->type);
    for (uint64_t i = 0; i < value->count; ++i) {
        const auto number = size == 0 ? std::nullopt : load_integer(value->type, value->data + i * size);
        if (!number) refuse_type(key, *value, "an array of whole numbers");
        out.push_back(*number);
    }
    return out;
}

std::optional<std::vector<bool>> GgufFile::bool_array(std::string_view key) const {
    const Value* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_array || value->type != GGUF_TYPE_BOOL) refuse_type(key, *value, "an array of truth values");
    std::vector<bool> out(value->count);
    for (uint64_t i = 0; i < value->count; ++i) out[i] = value->data[i] != 0;
    return out;
}

}  // namespace assay
