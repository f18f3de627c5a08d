#include "jinja_filters.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "unicode.h"

namespace assay::jinja {
namespace {

// ---------------------------------------------------------------- text
std::string_view trim(Budget& budget, std::string_view text, const Value* chars, bool at_start, bool at_end) {
    const std::string* wanted = nullptr;
    if (chars != nullptr && !is_none(*chars)) {
        wanted = as_string(*chars);
        if (wanted == nullptr) throw Failure("the characters to strip must be a string, found " + type_name(*chars));
        spend_search(budget, text.size(), wanted->size());
    }
    const auto is_trimmed = [&](size_t at, const CodePoint& point) {
        if (wanted == nullptr) return is_python_space(point.code);
        const std::string_view character = text.substr(at, point.size);
        for (size_t i = 0; i < wanted->size();) {
            const size_t size = decode_utf8(*wanted, i).size;
            if (std::string_view(*wanted).substr(i, size) == character) return true;
            i += size;
        }
        return false;
    };
    size_t begin = 0;
    while (at_start && begin < text.size()) {
        const CodePoint point = decode_utf8(text, begin);
        if (!is_trimmed(begin, point)) break;
        begin += point.size;
    }
    text = text.substr(begin);
    budget.spend_steps((begin + (at_end ? text.size() : 0)) / 16);
    size_t end = at_end ? 0 : text.size();
    for (size_t at = 0; at_end && at < text.size();) {
        const CodePoint point = decode_utf8(text, at);
        if (!is_trimmed(at, point)) end = at + point.size;
        at += point.size;
    }
    return text.substr(0, end);
}

void require_ascii(std::string_view text, std::string_view what) {
    if (std::any_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; })) {
        throw Failure("'" + std::string(what) + "' of text beyond ASCII is not supported");
    }
}

std::string capitalize(std::string_view text) {
    require_ascii(text, "capitalize");
    if (text.empty()) return "";
    return upper_utf8(text.substr(0, 1)) + lower_utf8(text.substr(1));
}

// Upper case for the first letter behind each separator. The filter and the method differ in what separates: the
// filter's own list, or everything that is no letter.
std::string title(std::string_view text, bool is_filter) {
    require_ascii(text, "title");
    std::string result;
    bool is_start = true;
    for (const char c : text) {
        const std::string_view one(&c, 1);
        result += is_start ? upper_utf8(one) : lower_utf8(one);
        is_start = is_filter ? std::string_view("- \t\n\v\f\r\x1c\x1d\x1e\x1f({[<").find(c) != std::string_view::npos
                             : char_class(static_cast<unsigned char>(c)) != CharClass::letter;
    }
    return result;
}

std::string replace(Budget& budget, std::string_view text, std::string_view from, std::string_view to, int64_t most) {
    spend_search(budget, text.size(), from.size());
    TextBuilder result(budget);
    const auto append = [&](std::string_view part) {
        budget.spend_steps(1);
        result.append(part);
    };
    if (from.empty()) {
        for (size_t at = 0; at <= text.size();) {
            if (most != 0) append(to);
            if (most > 0) --most;
            if (at == text.size()) break;
            const size_t size = decode_utf8(text, at).size;
            append(text.substr(at, size));
            at += size;
        }
        return result.take();
    }
    size_t at = 0;
    for (size_t found = text.find(from); found != std::string_view::npos && most != 0; found = text.find(from, at)) {
        append(text.substr(at, found - at));
        append(to);
        at = found + from.size();
        if (most > 0) --most;
    }
    append(text.substr(at));
    return result.take();
}

Value split(Budget& budget, std::string_view text, const Value* separator, int64_t most) {
    std::vector<Value> parts;
    const auto push = [&](std::string_view part) { parts.push_back(make_string(budget, std::string(part))); };
    if (separator == nullptr || is_none(*separator)) {
        // Runs of white space separate; there are no empty parts.
        budget.spend_steps(text.size() / 16);
        while (true) {
            text = trim(budget, text, nullptr, true, false);
            if (text.empty()) break;
            if (most == 0) {
                push(text);
                break;
            }
            --most;
            size_t end = 0;
            while (end < text.size()) {
                const CodePoint point = decode_utf8(text, end);
                if (is_python_space(point.code)) break;
                end += point.size;
            }
            push(text.substr(0, end));
            text = text.substr(end);
        }
        return make_list(budget, std::move(parts));
    }
    const std::string* mark = as_string(*separator);
    if (mark == nullptr) throw Failure("the separator of 'split' must be a string, found " + type_name(*separator));
    if (mark->empty()) throw Failure("the separator of 'split' is empty");
    spend_search(budget, text.size(), mark->size());
    size_t at = 0;
    for (size_t found = text.find(*mark); found != std::string_view::npos && most != 0; found = text.find(*mark, at)) {
        push(text.substr(at, found - at));
        at = found + mark->size();
        if (most > 0) --most;
    }
    push(text.substr(at));
    return make_list(budget, std::move(parts));
}

Value split_from_right(Budget& budget, std::string_view text, const std::string& mark, int64_t most) {
    if (mark.empty()) throw Failure("the separator of 'rsplit' is empty");
    spend_search(budget, text.size(), mark.size());
    std::vector<Value> parts;
    while (most != 0) {
        const size_t found = text.rfind(mark);
        if (found == std::string_view::npos) break;
        parts.push_back(make_string(budget, std::string(text.substr(found + mark.size()))));
        text = text.substr(0, found);
        if (most > 0) --most;
    }
    parts.push_back(make_string(budget, std::string(text)));
    std::reverse(parts.begin(), parts.end());
    return make_list(budget, std::move(parts));
}

// startswith and endswith: one string, or a tuple of which any may fit.
bool has_affix(Budget& budget, const std::string& text, const Value& affix, bool is_prefix, std::string_view method) {
    if (const auto* list = std::get_if<ListRef>(&affix); list != nullptr && (*list)->kind == ListKind::tuple) {
        return std::any_of((*list)->items.begin(), (*list)->items.end(),
                           [&](const Value& item) { return has_affix(budget, text, item, is_prefix, method); });
    }
    const std::string* wanted = as_string(affix);
    if (wanted == nullptr) {
        throw Failure("'" + std::string(method) + "' needs a string or a tuple of strings, found " + type_name(affix));
    }
    budget.spend_steps(1 + wanted->size() / 64);
    return is_prefix ? text.starts_with(*wanted) : text.ends_with(*wanted);
}

// ---------------------------------------------------------------- arguments
const Value& required(const Arguments& arguments, size_t position, std::string_view name, std::string_view callee) {
    const Value* value = arguments.find(position, name);
    if (value == nullptr) {
        throw Failure("'" + std::string(callee) + "' needs " + std::to_string(position + 1) + " argument" +
                      (position == 0 ? "" : "s"));
    }
    return *value;
}

const std::string& required_text(const Arguments& arguments, size_t position, std::string_view name,
                                 std::string_view callee) {
    const Value& value = required(arguments, position, name, callee);
    const std::string* text = as_string(value);
    if (text == nullptr) throw Failure("'" + std::string(callee) + "' needs a string, found " + type_name(value));
    return *text;
}

int64_t optional_integer(const Arguments& arguments, size_t position, std::string_view name, int64_t otherwise) {
    const Value* value = arguments.find(position, name);
    return value == nullptr || is_none(*value) ? otherwise : to_integer(*value, name);
}

// ---------------------------------------------------------------- filters
size_t length_of(Budget& budget, const Value& value) {
    if (const auto* text = as_string(value)) return characters(budget, *text).views.size();
    if (const auto* dict = std::get_if<DictRef>(&value)) return (*dict)->entries.size();
    if (const auto* list = std::get_if<ListRef>(&value)) return (*list)->items.size();
    if (is_undefined(value)) return 0;
    throw Failure("a value that is " + type_name(value) + " has no length");
}

Value join(Budget& budget, const Value& value, const std::string& separator, const Value* attribute) {
    TextBuilder result(budget);
    bool is_first = true;
    const ListRef list = elements(budget, value);
    for (Value item : list->items) {
        if (attribute != nullptr && !is_none(*attribute)) {
            const auto* dict = std::get_if<DictRef>(&item);
            const auto* key = as_string(*attribute);
            if (dict == nullptr || key == nullptr || key->find('.') != std::string::npos) {
                throw Failure("'join' by this attribute is not supported");
            }
            budget.spend_steps((*dict)->entries.size());
            const Value* found = (*dict)->find(*key);
            item = found != nullptr ? Value(*found) : Value(Undefined{});
        }
        if (!is_first) result.append(separator);
        is_first = false;
        budget.spend_steps(1);
        result.append(to_text(item));
    }
    return make_string(budget, result.take());
}

Value edge(Budget& budget, const Value& value, bool is_first) {
    const ListRef list = elements(budget, value);
    if (list->items.empty()) {
        return Undefined{std::make_shared<const std::string>(is_first ? "No first item, sequence was empty."
                                                                      : "No last item, sequence was empty.")};
    }
    return is_first ? list->items.front() : list->items.back();
}

Value to_json(Budget& budget, const Value& value, const Arguments& arguments) {
    arguments.expect("tojson", 0, {"indent", "ensure_ascii"});
    const Value* ascii = arguments.find(0, "ensure_ascii");
    if (ascii != nullptr && is_true(*ascii)) throw Failure("tojson with ensure_ascii=true is not supported");
    const int64_t indent = optional_integer(arguments, 0, "indent", -1);
    if (indent > 16) throw Failure("tojson with an indent above 16 is not supported");
    TextBuilder text(budget);
    append_json(text, value, static_cast<int>(std::max<int64_t>(indent, -1)));
    return make_string(budget, text.take());
}

Value to_whole(Budget& budget, const Value& value, const Arguments& arguments) {
    arguments.expect("int", 1, {"default"});
    if (is_undefined(value)) throw Failure("'int' of an undefined value");
    if (const auto* real = std::get_if<double>(&value)) {
        if (!(std::fabs(*real) < 9.0e18)) throw Failure("this number has no whole part of 64 bits");
        return static_cast<int64_t>(*real);
    }
    if (is_number(value)) return to_integer(value, "a number");
    const Value* given = arguments.find(0, "default");
    const Value otherwise = given != nullptr ? *given : Value(int64_t{0});
    if (const auto* text = as_string(value)) {
        const std::string_view digits = trim(budget, *text, nullptr, true, true);
        int64_t number = 0;
        const size_t first = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
        if (digits.size() == first) return otherwise;
        for (const char c : digits.substr(first)) {
            if (c < '0' || c > '9') {
                if (c == '_' || c == '.' || c == 'e' || c == 'E' || static_cast<unsigned char>(c) >= 0x80) {
                    throw Failure("'int' of this string is not supported");
                }
                return otherwise;
            }
            if (number > (INT64_MAX - 9) / 10) throw Failure("'int' of a number beyond 64 bits is not supported");
            number = number * 10 + (c - '0');
        }
        return digits[0] == '-' ? -number : number;
    }
    return otherwise;
}

}  // namespace

bool is_filter(std::string_view name) {
    constexpr std::string_view kNames[] = {"trim",  "upper", "lower",  "capitalize", "title", "length", "count", "join",
                                           "first", "last",  "default", "d",         "tojson", "replace", "string",
                                           "list",  "int"};
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Value apply_filter(Budget& budget, std::string_view name, const Value& value, const Arguments& arguments) {
    const auto text = [&](std::string result) { return make_string(budget, std::move(result)); };
    if (name == "default" || name == "d") {
        arguments.expect(name, 2, {"default_value", "boolean"});
        const Value* boolean = arguments.find(1, "boolean");
        const bool is_replaced = is_undefined(value) || (boolean != nullptr && is_true(*boolean) && !is_true(value));
        if (!is_replaced) return value;
        const Value* otherwise = arguments.find(0, "default_value");
        return otherwise != nullptr ? *otherwise : text("");
    }
    if (name == "tojson") return to_json(budget, value, arguments);
    if (name == "int") return to_whole(budget, value, arguments);
    if (name == "join") {
        arguments.expect(name, 2, {"d", "attribute"});
        const Value* separator = arguments.find(0, "d");
        return join(budget, value, separator != nullptr ? to_text(*separator) : "", arguments.find(1, "attribute"));
    }
    if (name == "trim") {
        arguments.expect(name, 1, {"chars"});
        const std::string source = to_text(value);
        return text(std::string(trim(budget, source, arguments.find(0, "chars"), true, true)));
    }
    if (name == "replace") {
        arguments.expect(name, 3, {"old", "new", "count"});
        const std::string from = to_text(required(arguments, 0, "old", name));
        const std::string to = to_text(required(arguments, 1, "new", name));
        return text(replace(budget, to_text(value), from, to, optional_integer(arguments, 2, "count", -1)));
    }
    arguments.expect(name, 0);
    if (name == "length" || name == "count") return static_cast<int64_t>(length_of(budget, value));
    if (name == "first" || name == "last") return edge(budget, value, name == "first");
    if (name == "upper") return text(upper_utf8(to_text(value)));
    if (name == "lower") return text(lower_utf8(to_text(value)));
    if (name == "capitalize") return text(capitalize(to_text(value)));
    if (name == "title") return text(title(to_text(value), true));
    if (name == "string") return text(to_text(value));
    if (name == "list") {
        const ListRef list = elements(budget, value);
        return list->kind == ListKind::list ? Value(list) : make_list(budget, list->items);
    }
    throw Failure("the filter '" + std::string(name) + "' is not supported");
}

bool is_test(std::string_view name) {
    constexpr std::string_view kNames[] = {
        "defined", "undefined", "none",     "string", "boolean",     "true", "false",   "integer", "float", "number",
        "mapping", "sequence",  "iterable", "odd",    "even",        "in",   "eq",      "equalto", "ne",    "lt",
        "le",      "gt",        "ge",       "lessthan", "greaterthan", "divisibleby"};
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

bool apply_test(Budget& budget, std::string_view name, const Value& value, const Arguments& arguments) {
    const auto is_flag = [&value](bool wanted) {
        const auto* flag = std::get_if<bool>(&value);
        return flag != nullptr && *flag == wanted;
    };
    const auto remainder = [&value](int64_t divisor) {
        if (divisor == 0) throw Failure("division by zero");
        const int64_t number = to_integer(value, "the tested value");
        return divisor == -1 ? 0 : number % divisor;
    };
    const auto other = [&]() -> const Value& {
        arguments.expect(name, 1);
        return required(arguments, 0, "", name);
    };
    if (name == "in") return contains(budget, other(), value);
    if (name == "eq" || name == "equalto") return equal(budget, value, other());
    if (name == "ne") return !equal(budget, value, other());
    if (name == "lt" || name == "lessthan") return compare(budget, value, other(), "<") < 0;
    if (name == "le") return compare(budget, value, other(), "<=") <= 0;
    if (name == "gt" || name == "greaterthan") return compare(budget, value, other(), ">") > 0;
    if (name == "ge") return compare(budget, value, other(), ">=") >= 0;
    if (name == "divisibleby") return remainder(to_integer(other(), "the divisor")) == 0;
    arguments.expect(name, 0);
    if (name == "defined") return !is_undefined(value);
    if (name == "undefined") return is_undefined(value);
    if (name == "none") return is_none(value);
    if (name == "string") return as_string(value) != nullptr;
    if (name == "boolean") return std::holds_alternative<bool>(value);
    if (name == "true") return is_flag(true);
    if (name == "false") return is_flag(false);
    if (name == "integer") return std::holds_alternative<int64_t>(value);
    if (name == "float") return std::holds_alternative<double>(value);
    if (name == "number") return is_number(value);
    if (name == "mapping") return std::holds_alternative<DictRef>(value);
    if (name == "odd") return remainder(2) != 0;
    if (name == "even") return remainder(2) == 0;
    if (name == "sequence" || name == "iterable") {
        const auto* list = std::get_if<ListRef>(&value);
        if (name == "sequence" && list != nullptr && (*list)->kind == ListKind::view) return false;
        return as_string(value) != nullptr || std::holds_alternative<ListRef>(value) ||
               std::holds_alternative<DictRef>(value) || is_undefined(value);
    }
    throw Failure("the test '" + std::string(name) + "' is not supported");
}

namespace {

Value apply_text_method(Budget& budget, std::string_view name, const std::string& text, const Arguments& arguments) {
    const auto made = [&](std::string result) { return make_string(budget, std::move(result)); };
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
        arguments.expect(name, 1);
        return made(std::string(trim(budget, text, arguments.find(0, ""), name != "rstrip", name != "lstrip")));
    }
    if (name == "startswith" || name == "endswith") {
        arguments.expect(name, 1);
        return has_affix(budget, text, required(arguments, 0, "", name), name == "startswith", name);
    }
    if (name == "split" || name == "rsplit") {
        arguments.expect(name, 2, {"sep", "maxsplit"});
        const Value* separator = arguments.find(0, "sep");
        const int64_t most = optional_integer(arguments, 1, "maxsplit", -1);
        if (name == "split") return split(budget, text, separator, most);
        return split_from_right(budget, text, required_text(arguments, 0, "sep", name), most);
    }
    if (name == "replace") {
        arguments.expect(name, 3);
        const std::string& from = required_text(arguments, 0, "", name);
        const std::string& to = required_text(arguments, 1, "", name);
        return made(replace(budget, text, from, to, optional_integer(arguments, 2, "count", -1)));
    }
    if (name == "join") {
        arguments.expect(name, 1);
        const ListRef list = elements(budget, required(arguments, 0, "", name));
        for (const Value& item : list->items) {
            if (as_string(item) == nullptr) throw Failure("'join' needs strings, found " + type_name(item));
        }
        return join(budget, list, text, nullptr);
    }
    if (name == "find") {
        arguments.expect(name, 1);
        const std::string& wanted = required_text(arguments, 0, "", name);
        spend_search(budget, text.size(), wanted.size());
        const size_t found = text.find(wanted);
        if (found == std::string::npos) return int64_t{-1};
        return static_cast<int64_t>(characters(budget, std::string_view(text).substr(0, found)).views.size());
    }
    arguments.expect(name, 0);
    if (name == "upper") return made(upper_utf8(text));
    if (name == "lower") return made(lower_utf8(text));
    if (name == "title") return made(title(text, false));
    if (name == "capitalize") return made(capitalize(text));
    throw Failure("the method '" + std::string(name) + "' of a string is not supported");
}

Value apply_dict_method(Budget& budget, std::string_view name, const Dict& dict, const Arguments& arguments) {
    if (name == "get") {
        arguments.expect(name, 2);
        const std::string& key = required_text(arguments, 0, "", name);
        budget.spend_steps(dict.entries.size());
        if (const Value* found = dict.find(key)) return *found;
        const Value* otherwise = arguments.find(1, "");
        return otherwise != nullptr ? *otherwise : Value(None{});
    }
    std::vector<Value> list;
    if (name != "items" && name != "keys" && name != "values") {
        throw Failure("the method '" + std::string(name) + "' of a dictionary is not supported");
    }
    arguments.expect(name, 0);
    for (const auto& [key, value] : dict.entries) {
        if (name == "values") {
            list.push_back(value);
        } else if (name == "keys") {
            list.push_back(make_string(budget, key));
        } else {
            list.push_back(make_list(budget, {make_string(budget, key), value}, ListKind::tuple));
        }
    }
    return make_list(budget, std::move(list), ListKind::view);
}

}  // namespace

Value apply_method(Budget& budget, std::string_view name, const Value& object, const Arguments& arguments) {
    if (const auto* text = as_string(object)) return apply_text_method(budget, name, *text, arguments);
    if (const auto* dict = std::get_if<DictRef>(&object)) return apply_dict_method(budget, name, **dict, arguments);
    throw Failure("the method '" + std::string(name) + "' of a value that is " + type_name(object) +
                  " is not supported");
}

}  // namespace assay::jinja
