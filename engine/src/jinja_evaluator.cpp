#include "jinja_evaluator.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "jinja_filters.h"
#include "jinja_lexer.h"

namespace assay::jinja {
namespace {

// As in Jinja's sandbox.
constexpr int64_t kRangeMax = 100000;

// The text of raise_exception, which passes through without a line.
class Raised : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

enum class Flow : uint8_t { next, break_loop, continue_loop };

Undefined undefined(std::string what) { return Undefined{std::make_shared<const std::string>(std::move(what))}; }

// Reading anything from an undefined value is an error that says what is undefined.
void require_defined(const Value& value) {
    const auto* missing = std::get_if<Undefined>(&value);
    if (missing != nullptr) throw Failure(missing->what != nullptr ? *missing->what : "a value is undefined");
}

class Evaluator {
public:
    Evaluator(Budget& budget, Variables variables) : budget_(budget), text_(budget) {
        scopes_.push_back(std::move(variables));
    }

    std::string run(const Body& body) {
        execute(body);
        return text_.take();
    }

private:
    // Variables set inside a loop or a set block are gone after it.
    class Scope {
    public:
        explicit Scope(Evaluator& evaluator) : scopes_(evaluator.scopes_) { scopes_.emplace_back(); }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        ~Scope() { scopes_.pop_back(); }

    private:
        std::vector<Variables>& scopes_;
    };

    void assign(const std::string& name, Value value) {
        Variables& scope = scopes_.back();
        const auto known = std::find_if(scope.begin(), scope.end(), [&](const auto& entry) { return entry.first == name; });
        if (known != scope.end()) {
            known->second = std::move(value);
        } else {
            scope.emplace_back(name, std::move(value));
        }
    }

    Value look_up(const std::string& name) {
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            for (const auto& [known, value] : *scope) {
                if (known == name) return value;
            }
        }
        return undefined("'" + name + "' is undefined");
    }

    // Runs `action` and puts the line in front of a Failure.
    template <typename Action>
    auto at_line(int line, Action action) {
        try {
            return action();
        } catch (const Failure& failure) {
            fail_at(line, failure.what());
        } catch (const std::length_error&) {
            fail_at(line, "a text is too long");
        }
    }

    // ------------------------------------------------------------ statements
    Flow execute(const Body& body) {
        for (const Statement& statement : body) {
            const Flow flow = execute(statement);
            if (flow != Flow::next) return flow;
        }
        return Flow::next;
    }

    Flow execute(const Statement& statement) {
        switch (statement.kind) {
            case StatementKind::text:
                at_line(statement.line, [&] {
                    budget_.spend_steps(1);
                    output_->append(statement.text);
                });
                return Flow::next;
            case StatementKind::output: {
                const Value value = evaluate(*statement.value);
                at_line(statement.line, [&] {
                    budget_.spend_steps(1);
                    output_->append(to_text(value));
                });
                return Flow::next;
            }
            case StatementKind::branch:
                for (const Branch& branch : statement.branches) {
                    if (branch.condition == nullptr || is_true(evaluate(*branch.condition))) {
                        return execute(branch.body);
                    }
                }
                return Flow::next;
            case StatementKind::loop:
                return execute_loop(statement);
            case StatementKind::set: {
                Value value = evaluate(*statement.value);
                at_line(statement.line, [&] { execute_set(statement, std::move(value)); });
                return Flow::next;
            }
            case StatementKind::set_block:
                return execute_set_block(statement);
            case StatementKind::break_loop:
                return Flow::break_loop;
            case StatementKind::continue_loop:
                return Flow::continue_loop;
        }
        return Flow::next;
    }

    void execute_set(const Statement& statement, Value value) {
        budget_.spend_steps(1);
        if (!statement.attribute.empty()) {
            const Value target = look_up(statement.names[0]);
            const auto* space = std::get_if<NamespaceRef>(&target);
            if (space == nullptr) throw Failure("'" + statement.names[0] + "' is no namespace");
            (*space)->set(statement.attribute, std::move(value));
        } else {
            assign_targets(statement.names, std::move(value));
        }
    }

    Flow execute_set_block(const Statement& statement) {
        TextBuilder captured(budget_);
        TextBuilder* const outside = std::exchange(output_, &captured);
        Flow flow = Flow::next;
        {
            const Scope scope(*this);
            flow = execute(statement.body);
        }
        output_ = outside;
        at_line(statement.line, [&] { assign(statement.names[0], make_string(budget_, captured.take())); });
        return flow;
    }

    void assign_targets(const std::vector<std::string>& names, Value value) {
        if (names.size() == 1) {
            assign(names[0], std::move(value));
            return;
        }
        const ListRef parts = elements(budget_, value);
        if (parts->items.size() != names.size()) {
            throw Failure("expected " + std::to_string(names.size()) + " values to unpack, found " +
                          std::to_string(parts->items.size()));
        }
        for (size_t i = 0; i < names.size(); ++i) assign(names[i], parts->items[i]);
    }

    Flow execute_loop(const Statement& statement) {
        const Value source = evaluate(*statement.value);
        ListRef items = at_line(statement.line, [&] {
            return elements(budget_, source);
        });
        if (statement.condition != nullptr) {
            std::vector<Value> kept;
            for (const Value& item : items->items) {
                const Scope scope(*this);
                at_line(statement.line, [&] { assign_targets(statement.names, item); });
                if (is_true(evaluate(*statement.condition))) kept.push_back(item);
            }
            items = at_line(statement.line, [&] { return std::get<ListRef>(make_list(budget_, std::move(kept))); });
        }
        const auto loop = std::make_shared<Loop>(Loop{items, 0});
        // As in Jinja, 'else' also runs when every pass was cut short by 'break' or 'continue'.
        bool has_completed = false;
        for (; loop->index < items->items.size(); ++loop->index) {
            const Scope scope(*this);
            at_line(statement.line, [&] {
                budget_.spend_steps(1);
                assign_targets(statement.names, items->items[loop->index]);
                assign("loop", loop);
            });
            const Flow flow = execute(statement.body);
            if (flow == Flow::break_loop) break;
            has_completed = has_completed || flow == Flow::next;
        }
        if (has_completed) return Flow::next;
        const Scope scope(*this);
        return execute(statement.otherwise);
    }

    // ------------------------------------------------------------ expressions
    Value evaluate(const Expr& expr) {
        switch (expr.kind) {
            // What evaluates several parts on its own; errors inside carry the line of the part.
            case ExprKind::logical_and: {
                Value left = evaluate(*expr.children[0]);
                return is_true(left) ? evaluate(*expr.children[1]) : left;
            }
            case ExprKind::logical_or: {
                Value left = evaluate(*expr.children[0]);
                return is_true(left) ? left : evaluate(*expr.children[1]);
            }
            case ExprKind::conditional:
                if (is_true(evaluate(*expr.children[1]))) return evaluate(*expr.children[0]);
                if (expr.children[2] != nullptr) return evaluate(*expr.children[2]);
                return undefined("the condition is false and there is no 'else'");
            case ExprKind::compare:
                return evaluate_compare(expr);
            case ExprKind::call:
                return evaluate_call(expr);
            default:
                break;
        }
        std::vector<Value> operands;
        operands.reserve(expr.children.size());
        for (const ExprRef& child : expr.children) operands.push_back(child != nullptr ? evaluate(*child) : Value(None{}));
        const Arguments arguments = evaluate_arguments(expr);
        return at_line(expr.line, [&] {
            budget_.spend_steps(1);
            return apply(expr, operands, arguments);
        });
    }

    Arguments evaluate_arguments(const Expr& expr) {
        Arguments arguments;
        for (const ExprRef& argument : expr.arguments) arguments.positional.push_back(evaluate(*argument));
        for (const auto& [name, argument] : expr.named) arguments.named.emplace_back(name, evaluate(*argument));
        return arguments;
    }

    Value apply(const Expr& expr, std::vector<Value>& operands, const Arguments& arguments) {
        switch (expr.kind) {
            case ExprKind::literal:
                return expr.value;
            case ExprKind::name:
                return look_up(expr.text);
            case ExprKind::attribute:
                return get_attribute(operands[0], expr.text);
            case ExprKind::item:
                return get_item(operands[0], operands[1]);
            case ExprKind::slice:
                return get_slice(operands);
            case ExprKind::filter:
                return apply_filter(budget_, expr.text, operands[0], arguments);
            case ExprKind::test:
                return apply_test(budget_, expr.text, operands[0], arguments);
            case ExprKind::list:
            case ExprKind::tuple:
                return make_list(budget_, std::move(operands),
                                 expr.kind == ExprKind::tuple ? ListKind::tuple : ListKind::list);
            case ExprKind::dict: {
                std::vector<std::pair<std::string, Value>> entries;
                for (size_t i = 0; i < operands.size(); i += 2) {
                    const std::string* key = as_string(operands[i]);
                    if (key == nullptr) throw Failure("a key that is " + type_name(operands[i]) + " is not supported");
                    entries.emplace_back(*key, operands[i + 1]);
                }
                return make_dict(budget_, std::move(entries));
            }
            case ExprKind::logical_not:
                return !is_true(operands[0]);
            case ExprKind::plus:
            case ExprKind::negate:
                return apply_sign(operands[0], expr.kind == ExprKind::negate);
            case ExprKind::concat: {
                TextBuilder text(budget_);
                for (const Value& operand : operands) text.append(to_text(operand));
                return make_string(budget_, text.take());
            }
            case ExprKind::arithmetic:
                return apply_arithmetic(expr.text[0], expr.text == "//", operands[0], operands[1]);
            default:
                throw Failure("this expression is not supported");
        }
    }

    Value evaluate_compare(const Expr& expr) {
        Value left = evaluate(*expr.children[0]);
        for (size_t i = 0; i < expr.operators.size(); ++i) {
            Value right = evaluate(*expr.children[i + 1]);
            const std::string& operation = expr.operators[i];
            const bool holds = at_line(expr.line, [&] {
                if (operation == "==") return equal(budget_, left, right);
                if (operation == "!=") return !equal(budget_, left, right);
                if (operation == "in") return contains(budget_, right, left);
                if (operation == "not in") return !contains(budget_, right, left);
                require_defined(left);
                require_defined(right);
                const int order = compare(budget_, left, right, operation);
                return operation == "<" ? order < 0 : operation == "<=" ? order <= 0 : operation == ">" ? order > 0
                                                                                                        : order >= 0;
            });
            if (!holds) return false;
            left = std::move(right);
        }
        return true;
    }

    // ------------------------------------------------------------ parts of values
    Value get_attribute(const Value& object, const std::string& name) {
        require_defined(object);
        if (name[0] == '_') throw Failure("the attribute '" + name + "' is not supported");
        if (const auto* dict = std::get_if<DictRef>(&object)) {
            // In Python the methods of a dictionary hide the keys of the same name.
            constexpr std::string_view kMethods[] = {"clear", "copy", "fromkeys", "get", "items", "keys", "pop",
                                                     "popitem", "setdefault", "update", "values"};
            if (std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods)) {
                throw Failure("the method '" + name + "' of a dictionary without a call is not supported");
            }
            budget_.spend_steps((*dict)->entries.size());
            if (const Value* found = (*dict)->find(name)) return *found;
        } else if (const auto* space = std::get_if<NamespaceRef>(&object)) {
            if (const Value* found = (*space)->find(name)) return *found;
        } else if (const auto* loop = std::get_if<LoopRef>(&object)) {
            return get_loop_attribute(**loop, name);
        }
        return undefined("the " + type_name(object) + " has no attribute '" + name + "'");
    }

    static Value get_loop_attribute(const Loop& loop, const std::string& name) {
        const auto index = static_cast<int64_t>(loop.index);
        const auto length = static_cast<int64_t>(loop.items->items.size());
        if (name == "index") return index + 1;
        if (name == "index0") return index;
        if (name == "first") return index == 0;
        if (name == "last") return index + 1 == length;
        if (name == "length") return length;
        if (name == "revindex") return length - index;
        if (name == "revindex0") return length - index - 1;
        if (name == "previtem") {
            return index > 0 ? loop.items->items[loop.index - 1] : Value(undefined("there is no previous item"));
        }
        if (name == "nextitem") {
            return index + 1 < length ? loop.items->items[loop.index + 1] : Value(undefined("there is no next item"));
        }
        throw Failure("the attribute '" + name + "' of a loop is not supported");
    }

    Value get_item(const Value& object, const Value& key) {
        require_defined(object);
        if (const auto* dict = std::get_if<DictRef>(&object)) {
            budget_.spend_steps((*dict)->entries.size());
            if (const std::string* name = as_string(key)) {
                const Value* found = (*dict)->find(*name);
                return found != nullptr ? *found : Value(undefined("the dictionary has no key '" + *name + "'"));
            }
            return undefined("the dictionary has no such key");
        }
        if (const std::string* name = as_string(key)) return get_attribute(object, *name);
        const auto* sequence = std::get_if<ListRef>(&object);
        const bool is_sequence =
            as_string(object) != nullptr || (sequence != nullptr && (*sequence)->kind != ListKind::view);
        if (!is_sequence || !(std::holds_alternative<int64_t>(key) || std::holds_alternative<bool>(key))) {
            return undefined("the " + type_name(object) + " has no such item");
        }
        int64_t index = to_integer(key, "an index");
        if (const auto* list = std::get_if<ListRef>(&object)) {
            const auto size = static_cast<int64_t>((*list)->items.size());
            if (index < 0) index += size;
            if (index >= 0 && index < size) return (*list)->items[static_cast<size_t>(index)];
        } else {
            const Characters text = characters(budget_, *as_string(object));
            const auto size = static_cast<int64_t>(text.views.size());
            if (index < 0) index += size;
            if (index >= 0 && index < size) {
                return make_string(budget_, std::string(text.views[static_cast<size_t>(index)]));
            }
        }
        return undefined("the " + type_name(object) + " has no item " + std::to_string(index));
    }

    // operands: object, from, to, step; none stands for a bound that is left out.
    Value get_slice(const std::vector<Value>& operands) {
        require_defined(operands[0]);
        const std::string* text = as_string(operands[0]);
        const auto* list = std::get_if<ListRef>(&operands[0]);
        if (text == nullptr && (list == nullptr || (*list)->kind == ListKind::view)) {
            throw Failure("a slice of a value that is " + type_name(operands[0]) + " is not possible");
        }
        const Characters split = text != nullptr ? characters(budget_, *text) : Characters{};
        const auto size = static_cast<int64_t>(text != nullptr ? split.views.size() : (*list)->items.size());
        const int64_t step = is_none(operands[3]) ? 1 : to_integer(operands[3], "the step of a slice");
        if (step == 0) throw Failure("the step of a slice is 0");
        // Python's rules: negative bounds count from the end, then everything is clipped to what exists.
        const auto clip = [&](const Value& bound, int64_t otherwise) {
            if (is_none(bound)) return otherwise;
            int64_t at = to_integer(bound, "the bound of a slice");
            if (at < 0) at = at < -size ? -1 : at + size;
            const int64_t low = step > 0 ? 0 : -1;
            const int64_t high = step > 0 ? size : size - 1;
            return std::clamp(at, low, std::max(low, high));
        };
        const int64_t from = clip(operands[1], step > 0 ? 0 : size - 1);
        const int64_t to = clip(operands[2], step > 0 ? size : -1);
        std::string text_part;
        std::vector<Value> list_part;
        for (int64_t at = from; step > 0 ? at < to : at > to;) {
            if (text != nullptr) {
                text_part += split.views[static_cast<size_t>(at)];
            } else {
                list_part.push_back((*list)->items[static_cast<size_t>(at)]);
            }
            // A step longer than what is left ends here; adding it could overflow.
            if (step > 0 ? step >= to - at : step <= to - at) break;
            at += step;
        }
        if (text != nullptr) return make_string(budget_, std::move(text_part));
        return make_list(budget_, std::move(list_part), (*list)->kind);
    }

    // ------------------------------------------------------------ arithmetic
    static Value apply_sign(const Value& value, bool is_negative) {
        require_defined(value);
        if (const auto* real = std::get_if<double>(&value)) return is_negative ? -*real : *real;
        const int64_t number = to_integer(value, "the operand of a sign");
        if (number == INT64_MIN && is_negative) throw Failure("a whole number exceeds 64 bits");
        return is_negative ? -number : number;
    }

    Value apply_arithmetic(char operation, bool is_floor, const Value& left, const Value& right) {
        require_defined(left);
        require_defined(right);
        if (is_number(left) && is_number(right)) {
            const bool is_real = std::holds_alternative<double>(left) || std::holds_alternative<double>(right) ||
                                 (operation == '/' && !is_floor);
            if (is_real) return real_arithmetic(operation, is_floor, to_real(left), to_real(right));
            return whole_arithmetic(operation, to_integer(left, "a number"), to_integer(right, "a number"));
        }
        const std::string* text = as_string(left);
        const auto* list = std::get_if<ListRef>(&left);
        if (operation == '+' && text != nullptr && as_string(right) != nullptr) {
            TextBuilder sum(budget_);
            sum.append(*text);
            sum.append(*as_string(right));
            return make_string(budget_, sum.take());
        }
        if (operation == '+' && list != nullptr && std::holds_alternative<ListRef>(right)) {
            const auto& other = std::get<ListRef>(right);
            if ((*list)->kind == other->kind && other->kind <= ListKind::tuple) {
                std::vector<Value> items((*list)->items);
                items.insert(items.end(), other->items.begin(), other->items.end());
                return make_list(budget_, std::move(items), other->kind);
            }
        }
        if (operation == '*' && text != nullptr && std::holds_alternative<int64_t>(right)) {
            TextBuilder product(budget_);
            for (int64_t i = 0; i < std::get<int64_t>(right) && !text->empty(); ++i) {
                budget_.spend_steps(1);
                product.append(*text);
            }
            return make_string(budget_, product.take());
        }
        throw Failure(std::string("'") + operation + (is_floor ? "/" : "") + "' between " + type_name(left) + " and " +
                      type_name(right) + " is not supported");
    }

    static double real_arithmetic(char operation, bool is_floor, double left, double right) {
        if ((operation == '/' || operation == '%') && right == 0) throw Failure("division by zero");
        switch (operation) {
            case '+': return left + right;
            case '-': return left - right;
            case '*': return left * right;
            case '%': {
                const double rest = std::fmod(left, right);
                return rest != 0 && (rest < 0) != (right < 0) ? rest + right : rest;
            }
            default: return is_floor ? std::floor(left / right) : left / right;
        }
    }

    static int64_t whole_arithmetic(char operation, int64_t left, int64_t right) {
        int64_t result = 0;
        bool overflows = false;
        switch (operation) {
            case '+': overflows = __builtin_add_overflow(left, right, &result); break;
            case '-': overflows = __builtin_sub_overflow(left, right, &result); break;
            case '*': overflows = __builtin_mul_overflow(left, right, &result); break;
            default: {
                // Python rounds the quotient down, and the remainder has the sign of the divisor.
                if (right == 0) throw Failure("division by zero");
                overflows = left == INT64_MIN && right == -1;
                if (overflows) break;
                const int64_t rest = left % right;
                const bool is_adjusted = rest != 0 && (rest < 0) != (right < 0);
                result = operation == '%' ? rest + (is_adjusted ? right : 0) : left / right - (is_adjusted ? 1 : 0);
            }
        }
        if (overflows) throw Failure("a whole number exceeds 64 bits");
        return result;
    }

    // ------------------------------------------------------------ calls
    Value evaluate_call(const Expr& expr) {
        const Expr& callee = *expr.children[0];
        if (callee.kind == ExprKind::attribute) {
            const Value object = evaluate(*callee.children[0]);
            const Arguments arguments = evaluate_arguments(expr);
            return at_line(expr.line, [&] {
                budget_.spend_steps(1);
                require_defined(object);
                return apply_method(budget_, callee.text, object, arguments);
            });
        }
        if (callee.kind != ExprKind::name) fail_at(expr.line, "only functions and methods can be called");
        const Arguments arguments = evaluate_arguments(expr);
        return at_line(expr.line, [&] {
            budget_.spend_steps(1);
            return call_function(callee.text, arguments);
        });
    }

    Value call_function(const std::string& name, const Arguments& arguments) {
        const Value hidden = look_up(name);
        if (!is_undefined(hidden)) throw Failure("'" + name + "' is " + type_name(hidden) + " and cannot be called");
        if (name == "raise_exception") {
            arguments.expect(name, 1);
            const Value* text = arguments.find(0, "");
            throw Raised(text != nullptr ? to_text(*text) : "the chat template raised an exception");
        }
        if (name == "strftime_now") {
            throw Failure("'strftime_now' is not supported: the prompt would depend on the day");
        }
        if (name == "namespace") {
            if (!arguments.positional.empty()) throw Failure("'namespace' takes named arguments only");
            auto space = std::make_shared<Namespace>();
            for (const auto& [key, value] : arguments.named) space->set(key, value);
            return space;
        }
        if (name == "range") return make_range(arguments);
        require_defined(hidden);
        return None{};
    }

    Value make_range(const Arguments& arguments) {
        arguments.expect("range", 3);
        const size_t count = arguments.positional.size();
        if (count == 0) throw Failure("'range' needs an argument");
        const auto bound = [&](size_t i) { return to_integer(arguments.positional[i], "the bound of a range"); };
        const int64_t from = count > 1 ? bound(0) : 0;
        const int64_t to = count > 1 ? bound(1) : bound(0);
        const int64_t step = count > 2 ? bound(2) : 1;
        if (step == 0) throw Failure("the step of a range is 0");
        std::vector<Value> items;
        for (int64_t at = from; step > 0 ? at < to : at > to;) {
            if (static_cast<int64_t>(items.size()) >= kRangeMax) {
                throw Failure("the range is longer than " + std::to_string(kRangeMax));
            }
            items.emplace_back(at);
            if (__builtin_add_overflow(at, step, &at)) break;
        }
        return make_list(budget_, std::move(items), ListKind::range);
    }

    Budget& budget_;
    TextBuilder text_;
    TextBuilder* output_ = &text_;  // text_, or what a set block captures; not restored by an error, which ends it all
    std::vector<Variables> scopes_;
};

}  // namespace

std::string evaluate(const Body& body, Budget& budget, Variables variables) {
    return Evaluator(budget, std::move(variables)).run(body);
}

}  // namespace assay::jinja
