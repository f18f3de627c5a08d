// Values of the template language, with Python's behaviour, and the limits that a rendering runs under.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace assay::jinja {

// An error without its line; the evaluator adds "line N: " in front.
class Failure : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// Stops a hostile or broken template: steps bound the time, bytes the memory that is live at once.
class Budget {
public:
    Budget(int64_t steps, int64_t bytes) : steps_(steps), bytes_(bytes) {}
    void spend_steps(size_t steps) {
        steps_ -= static_cast<int64_t>(steps);
        if (steps_ < 0) throw Failure("the template takes too many steps");
    }
    void take_bytes(size_t bytes) {
        if (static_cast<int64_t>(bytes) > bytes_) throw Failure("the template needs too much memory");
        bytes_ -= static_cast<int64_t>(bytes);
        // Writing takes time too.
        spend_steps(bytes / 64);
    }
    void return_bytes(size_t bytes) { bytes_ += static_cast<int64_t>(bytes); }

private:
    int64_t steps_;
    int64_t bytes_;
};

// Bytes of a budget, given back when the value goes.
class Claim {
public:
    Claim() = default;
    Claim(Budget& budget, size_t bytes) : budget_(&budget), bytes_(bytes) { budget.take_bytes(bytes); }
    Claim(Claim&& other) noexcept : budget_(std::exchange(other.budget_, nullptr)), bytes_(other.bytes_) {}
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    Claim& operator=(Claim&&) = delete;
    ~Claim() {
        if (budget_ != nullptr) budget_->return_bytes(bytes_);
    }

private:
    Budget* budget_ = nullptr;
    size_t bytes_ = 0;
};

// A text that grows under a budget.
class TextBuilder {
public:
    explicit TextBuilder(Budget& budget) : budget_(budget) {}
    TextBuilder(const TextBuilder&) = delete;
    TextBuilder& operator=(const TextBuilder&) = delete;
    ~TextBuilder() { budget_.return_bytes(text_.size()); }
    void append(std::string_view part) {
        budget_.take_bytes(part.size());
        text_ += part;
    }
    Budget& budget() { return budget_; }
    // The text so far; the builder is empty afterwards.
    std::string take() {
        budget_.return_bytes(text_.size());
        return std::exchange(text_, std::string());
    }

private:
    Budget& budget_;
    std::string text_;
};

struct String;
struct List;
struct Dict;
struct Namespace;
struct Loop;

struct Undefined {
    std::shared_ptr<const std::string> what;  // "'x' is undefined", may be null
};
struct None {};

using StringRef = std::shared_ptr<const String>;
using ListRef = std::shared_ptr<const List>;
using DictRef = std::shared_ptr<const Dict>;
using NamespaceRef = std::shared_ptr<Namespace>;
using LoopRef = std::shared_ptr<Loop>;
using Value = std::variant<Undefined, None, bool, int64_t, double, StringRef, ListRef, DictRef, NamespaceRef, LoopRef>;

struct String {
    std::string text;
    Claim claim;
};
// What Python would have made: the kinds are never equal to each other, and only lists and tuples are data. A view is
// what the methods of a dictionary return: it can be looped over and counted, nothing else.
enum class ListKind : uint8_t { list, tuple, range, view };

struct List {
    std::vector<Value> items;
    ListKind kind = ListKind::list;
    int depth = 1;  // lists and dictionaries inside each other, this one included
    Claim claim;
};
struct Dict {
    std::vector<std::pair<std::string, Value>> entries;  // in order of insertion
    int depth = 1;
    Claim claim;
    const Value* find(std::string_view key) const;
};
// What namespace() makes: the one value that a template can change.
struct Namespace {
    std::vector<std::pair<std::string, Value>> entries;
    const Value* find(std::string_view key) const;
    void set(const std::string& key, Value value);
};
struct Loop {
    ListRef items;
    size_t index = 0;
};

// Arguments of a call, filter or test.
struct Arguments {
    std::vector<Value> positional;
    std::vector<std::pair<std::string, Value>> named;
    // The argument at a position or under a name; null when it was not given.
    const Value* find(size_t position, std::string_view name) const;
    // Throws Failure when there are more positional arguments or other names than the ones stated.
    void expect(std::string_view callee, size_t most, std::initializer_list<std::string_view> names = {}) const;
};

Value make_string(Budget& budget, std::string text);
Value make_list(Budget& budget, std::vector<Value> items, ListKind kind = ListKind::list);
// A key that stands twice keeps its first place and its last value.
Value make_dict(Budget& budget, std::vector<std::pair<std::string, Value>> entries);

bool is_undefined(const Value& value);
bool is_none(const Value& value);
const std::string* as_string(const Value& value);  // null unless a string
bool is_true(const Value& value);
bool is_number(const Value& value);
// Throws Failure ("... must be a whole number").
int64_t to_integer(const Value& value, std::string_view what);
double to_real(const Value& value);
std::string type_name(const Value& value);

// Python's str(). Throws Failure for lists, dictionaries and other values whose text no template should depend on.
std::string to_text(const Value& value);
std::string real_text(double value);
// json.dumps(value, ensure_ascii=False, indent=indent); indent < 0: on one line.
void append_json(TextBuilder& out, const Value& value, int indent, int level = 0);

bool equal(Budget& budget, const Value& a, const Value& b);
// Python's order of numbers and of strings; anything else is a Failure that names `operation`.
int compare(Budget& budget, const Value& a, const Value& b, std::string_view operation);
bool contains(Budget& budget, const Value& container, const Value& item);
// The elements that a for loop visits: list items, keys, characters; nothing for undefined.
ListRef elements(Budget& budget, const Value& value);
// The code points of a text, each as its bytes.
struct Characters {
    Claim claim;
    std::vector<std::string_view> views;
};
Characters characters(Budget& budget, std::string_view text);

// Pays for looking for one string in another, whose cost can grow with the product of the sizes.
void spend_search(Budget& budget, size_t text_size, size_t wanted_size);

}  // namespace assay::jinja
