#include "jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "unicode.h"

namespace assay::jinja {
namespace {

// Bounds every recursion over values.
constexpr int kDepthMax = 32;

int depth_of(const Value& value) {
    if (const auto* list = std::get_if<ListRef>(&value)) return (*list)->depth;
    if (const auto* dict = std::get_if<DictRef>(&value)) return (*dict)->depth;
    if (std::holds_alternative<NamespaceRef>(value) || std::holds_alternative<LoopRef>(value)) {
        // It could come to hold itself.
        throw Failure("a " + type_name(value) + " inside another value is not supported");
    }
    return 0;
}

int deeper(int deepest) {
    if (deepest >= kDepthMax) throw Failure("values are nested more than " + std::to_string(kDepthMax) + " deep");
    return deepest + 1;
}

template <typename Entries>
auto* find_entry(Entries& entries, std::string_view key) {
    const auto found =
        std::find_if(entries.begin(), entries.end(), [key](const auto& entry) { return entry.first == key; });
    return found == entries.end() ? nullptr : &found->second;
}

void append_json_string(TextBuilder& out, std::string_view text) {
    constexpr char kHex[] = "0123456789abcdef";
    std::string quoted = "\"";
    for (const char c : text) {
        switch (c) {
            case '"': quoted += "\\\""; break;
            case '\\': quoted += "\\\\"; break;
            case '\b': quoted += "\\b"; break;
            case '\f': quoted += "\\f"; break;
            case '\n': quoted += "\\n"; break;
            case '\r': quoted += "\\r"; break;
            case '\t': quoted += "\\t"; break;
            default:
                if (static_cast<unsigned char>(c) < 0x20) {
                    quoted += "\\u00";
                    quoted.push_back(kHex[c >> 4]);
                    quoted.push_back(kHex[c & 15]);
                } else {
                    quoted.push_back(c);
                }
        }
    }
    out.append(quoted + '"');
}

void append_break(TextBuilder& out, int indent, int level) {
    if (indent >= 0) out.append("\n" + std::string(static_cast<size_t>(indent) * static_cast<size_t>(level), ' '));
}

}  // namespace

const Value* Dict::find(std::string_view key) const { return find_entry(entries, key); }
const Value* Namespace::find(std::string_view key) const { return find_entry(entries, key); }

void Namespace::set(const std::string& key, Value value) {
    depth_of(value);  // refuses what could make a cycle
    if (Value* entry = find_entry(entries, key)) {
        *entry = std::move(value);
    } else {
        entries.emplace_back(key, std::move(value));
    }
}

const Value* Arguments::find(size_t position, std::string_view name) const {
    if (position < positional.size()) return &positional[position];
    return name.empty() ? nullptr : find_entry(named, name);
}

void Arguments::expect(std::string_view callee, size_t most, std::initializer_list<std::string_view> names) const {
    if (positional.size() > most) {
        throw Failure("'" + std::string(callee) + "' got " + std::to_string(positional.size()) +
                      " arguments, expected at most " + std::to_string(most));
    }
    for (const auto& [name, value] : named) {
        if (std::find(names.begin(), names.end(), name) == names.end()) {
            throw Failure("the argument '" + name + "' of '" + std::string(callee) + "' is not supported");
        }
    }
}

Value make_string(Budget& budget, std::string text) {
    const size_t bytes = text.size() + sizeof(String);
    return std::make_shared<const String>(String{std::move(text), Claim(budget, bytes)});
}

Value make_list(Budget& budget, std::vector<Value> items, ListKind kind) {
    int deepest = 0;
    for (const Value& item : items) deepest = std::max(deepest, depth_of(item));
    budget.spend_steps(items.size());
    Claim claim(budget, items.size() * sizeof(Value) + sizeof(List));
    return std::make_shared<const List>(List{std::move(items), kind, deeper(deepest), std::move(claim)});
}

Value make_dict(Budget& budget, std::vector<std::pair<std::string, Value>> entries) {
    std::vector<std::pair<std::string, Value>> unique;
    int deepest = 0;
    size_t bytes = sizeof(Dict);
    for (auto& [key, value] : entries) {
        deepest = std::max(deepest, depth_of(value));
        bytes += key.size() + sizeof(key) + sizeof(Value);
        budget.spend_steps(unique.size());
        if (Value* known = find_entry(unique, key)) {
            *known = std::move(value);
        } else {
            unique.emplace_back(std::move(key), std::move(value));
        }
    }
    Claim claim(budget, bytes);
    return std::make_shared<const Dict>(Dict{std::move(unique), deeper(deepest), std::move(claim)});
}

bool is_undefined(const Value& value) { return std::holds_alternative<Undefined>(value); }
bool is_none(const Value& value) { return std::holds_alternative<None>(value); }

const std::string* as_string(const Value& value) {
    const auto* ref = std::get_if<StringRef>(&value);
    return ref != nullptr ? &(*ref)->text : nullptr;
}

bool is_true(const Value& value) {
    if (const auto* flag = std::get_if<bool>(&value)) return *flag;
    if (const auto* integer = std::get_if<int64_t>(&value)) return *integer != 0;
    if (const auto* real = std::get_if<double>(&value)) return *real != 0;
    if (const auto* text = as_string(value)) return !text->empty();
    if (const auto* list = std::get_if<ListRef>(&value)) return !(*list)->items.empty();
    if (const auto* dict = std::get_if<DictRef>(&value)) return !(*dict)->entries.empty();
    return !is_undefined(value) && !is_none(value);
}

bool is_number(const Value& value) {
    return std::holds_alternative<bool>(value) || std::holds_alternative<int64_t>(value) ||
           std::holds_alternative<double>(value);
}

int64_t to_integer(const Value& value, std::string_view what) {
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? 1 : 0;
    if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
    throw Failure(std::string(what) + " must be a whole number, found " + type_name(value));
}

double to_real(const Value& value) {
    if (const auto* real = std::get_if<double>(&value)) return *real;
    return static_cast<double>(to_integer(value, "a number"));
}

std::string type_name(const Value& value) {
    if (const auto* list = std::get_if<ListRef>(&value)) {
        constexpr const char* kKinds[] = {"list", "tuple", "range", "view"};
        return kKinds[static_cast<size_t>((*list)->kind)];
    }
    constexpr const char* kNames[] = {"undefined", "none", "boolean",    "integer",   "float",
                                      "string",    "list", "dictionary", "namespace", "loop"};
    return kNames[value.index()];
}

std::string real_text(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    char buffer[40];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
    const std::string_view text(buffer, static_cast<size_t>(end - buffer));
    const size_t mark = text.find('e');
    int exponent = 0;
    std::from_chars(text.data() + mark + (text[mark + 1] == '+' ? 2 : 1), end, exponent);
    // Python's repr: the shortest digits, in fixed notation from 1e-4 up to 1e16.
    if (exponent < -4 || exponent >= 16) return std::string(text);
    std::string sign(text[0] == '-' ? "-" : "");
    std::string digits(text.substr(sign.size(), mark - sign.size()));
    if (const size_t point = digits.find('.'); point != std::string::npos) digits.erase(point, 1);
    if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
    const auto whole = static_cast<size_t>(exponent) + 1;
    if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
    return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

std::string to_text(const Value& value) {
    if (const auto* text = as_string(value)) return *text;
    if (is_undefined(value)) return "";
    if (is_none(value)) return "None";
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "True" : "False";
    if (const auto* integer = std::get_if<int64_t>(&value)) return std::to_string(*integer);
    if (const auto* real = std::get_if<double>(&value)) return real_text(*real);
    throw Failure("writing a " + type_name(value) + " as text is not supported");
}

void append_json(TextBuilder& out, const Value& value, int indent, int level) {
    out.budget().spend_steps(1);
    const std::string_view comma = indent < 0 ? ", " : ",";
    bool is_first = true;
    const auto next = [&] {
        if (!is_first) out.append(comma);
        is_first = false;
        append_break(out, indent, level + 1);
    };
    if (const auto* text = as_string(value)) {
        append_json_string(out, *text);
    } else if (is_none(value)) {
        out.append("null");
    } else if (const auto* flag = std::get_if<bool>(&value)) {
        out.append(*flag ? "true" : "false");
    } else if (const auto* real = std::get_if<double>(&value); real != nullptr && !std::isfinite(*real)) {
        out.append(std::isnan(*real) ? "NaN" : *real > 0 ? "Infinity" : "-Infinity");
    } else if (is_number(value)) {
        out.append(to_text(value));
    } else if (const auto* list = std::get_if<ListRef>(&value); list != nullptr && (*list)->kind <= ListKind::tuple) {
        out.append("[");
        for (const Value& item : (*list)->items) {
            next();
            append_json(out, item, indent, level + 1);
        }
        if (!is_first) append_break(out, indent, level);
        out.append("]");
    } else if (const auto* dict = std::get_if<DictRef>(&value)) {
        out.append("{");
        for (const auto& [key, item] : (*dict)->entries) {
            next();
            append_json_string(out, key);
            out.append(": ");
            append_json(out, item, indent, level + 1);
        }
        if (!is_first) append_break(out, indent, level);
        out.append("}");
    } else {
        throw Failure("tojson of a value that is " + type_name(value) + " is not possible");
    }
}

bool equal(Budget& budget, const Value& a, const Value& b) {
    budget.spend_steps(1);
    if (is_number(a) && is_number(b)) {
        if (std::holds_alternative<double>(a) || std::holds_alternative<double>(b)) return to_real(a) == to_real(b);
        return to_integer(a, "a number") == to_integer(b, "a number");
    }
    if (a.index() != b.index()) return false;
    if (const auto* text = as_string(a)) {
        budget.spend_steps(text->size() / 64);
        return *text == *as_string(b);
    }
    if (const auto* left = std::get_if<ListRef>(&a)) {
        const auto& right = std::get<ListRef>(b);
        if ((*left)->kind == ListKind::view || right->kind == ListKind::view) {
            throw Failure("comparing a view of a dictionary is not supported");
        }
        return (*left)->kind == right->kind &&
               std::equal((*left)->items.begin(), (*left)->items.end(), right->items.begin(), right->items.end(),
                          [&budget](const Value& x, const Value& y) { return equal(budget, x, y); });
    }
    if (const auto* left = std::get_if<DictRef>(&a)) {
        const auto& right = std::get<DictRef>(b);
        if ((*left)->entries.size() != right->entries.size()) return false;
        for (const auto& [key, value] : (*left)->entries) {
            budget.spend_steps(right->entries.size());
            const Value* other = right->find(key);
            if (other == nullptr || !equal(budget, value, *other)) return false;
        }
        return true;
    }
    if (const auto* left = std::get_if<NamespaceRef>(&a)) return *left == std::get<NamespaceRef>(b);
    if (const auto* left = std::get_if<LoopRef>(&a)) return *left == std::get<LoopRef>(b);
    return true;  // none or undefined, both
}

int compare(Budget& budget, const Value& a, const Value& b, std::string_view operation) {
    budget.spend_steps(1);
    const auto order = [](const auto& x, const auto& y) { return x < y ? -1 : (y < x ? 1 : 0); };
    if (is_number(a) && is_number(b)) {
        if (!std::holds_alternative<double>(a) && !std::holds_alternative<double>(b)) {
            return order(to_integer(a, ""), to_integer(b, ""));
        }
        if (std::isnan(to_real(a)) || std::isnan(to_real(b))) throw Failure("comparing nan is not supported");
        return order(to_real(a), to_real(b));
    }
    const auto* left = as_string(a);
    const auto* right = as_string(b);
    if (left == nullptr || right == nullptr) {
        throw Failure("'" + std::string(operation) + "' between " + type_name(a) + " and " + type_name(b) +
                      " is not supported");
    }
    budget.spend_steps(std::min(left->size(), right->size()) / 64);
    // Bytes of UTF-8 compare like the code points they encode.
    return left->compare(*right) < 0 ? -1 : (*left == *right ? 0 : 1);
}

bool contains(Budget& budget, const Value& container, const Value& item) {
    if (const auto* text = as_string(container)) {
        const auto* wanted = as_string(item);
        if (wanted == nullptr) throw Failure("'in' a string needs a string, found " + type_name(item));
        spend_search(budget, text->size(), wanted->size());
        return text->find(*wanted) != std::string::npos;
    }
    if (const auto* dict = std::get_if<DictRef>(&container)) {
        const auto* key = as_string(item);
        const auto* list = std::get_if<ListRef>(&item);
        if (std::holds_alternative<DictRef>(item) || (list != nullptr && ((*list)->kind == ListKind::list || (*list)->kind == ListKind::view))) {
            throw Failure("a " + type_name(item) + " cannot be a key of a dictionary");
        }
        budget.spend_steps((*dict)->entries.size());
        return key != nullptr && (*dict)->find(*key) != nullptr;
    }
    const ListRef list = elements(budget, container);
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& element) { return equal(budget, element, item); });
}

ListRef elements(Budget& budget, const Value& value) {
    if (const auto* list = std::get_if<ListRef>(&value)) return *list;
    std::vector<Value> items;
    if (const auto* text = as_string(value)) {
        const Characters split = characters(budget, *text);
        for (const std::string_view character : split.views) {
            items.push_back(make_string(budget, std::string(character)));
        }
    } else if (const auto* dict = std::get_if<DictRef>(&value)) {
        for (const auto& entry : (*dict)->entries) items.push_back(make_string(budget, entry.first));
    } else if (!is_undefined(value)) {
        throw Failure("a value that is " + type_name(value) + " cannot be iterated over");
    }
    return std::get<ListRef>(make_list(budget, std::move(items)));
}

Characters characters(Budget& budget, std::string_view text) {
    budget.spend_steps(text.size());
    Characters result{Claim(budget, text.size() * sizeof(std::string_view)), {}};
    result.views.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
        const size_t size = decode_utf8(text, at).size;
        result.views.push_back(text.substr(at, size));
        at += size;
    }
    return result;
}

void spend_search(Budget& budget, size_t text_size, size_t wanted_size) {
    if (wanted_size <= text_size) budget.spend_steps(1 + text_size / 16 * (1 + wanted_size / 16));
}

}  // namespace assay::jinja
