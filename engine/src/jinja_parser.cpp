#include "jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

#include "jinja_filters.h"
#include "jinja_lexer.h"

namespace assay::jinja {
namespace {

// Brackets, blocks and prefix operators inside each other; the parser recurses this deep.
constexpr int kNestingMax = 64;
// Longest way down the tree, chains such as a + b + c included; the evaluator recurses this deep.
constexpr int kDepthMax = 200;
constexpr size_t kSourceBytesMax = size_t{256} << 10;

class Parser {
public:
    explicit Parser(std::string_view source) : tokens_(lex(source)) {}

    Body run() {
        Body body = parse_body({});
        if (current().kind != TokenKind::end) fail_at(current().line, "unexpected statement");
        return body;
    }

private:
    // Counts one level of recursion while it lives.
    class Level {
    public:
        explicit Level(Parser& parser) : parser_(parser) {
            if (++parser_.nesting_ > kNestingMax) {
                fail_at(parser_.current().line, "the template is nested more than " + std::to_string(kNestingMax) + " deep");
            }
        }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;
        ~Level() { --parser_.nesting_; }

    private:
        Parser& parser_;
    };

    const Token& current() const { return tokens_[at_]; }
    const Token& look(size_t ahead) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
    Token take() { return at_ + 1 < tokens_.size() ? tokens_[at_++] : tokens_[at_]; }
    bool is_name(std::string_view text) const { return current().kind == TokenKind::name && current().text == text; }
    bool is_mark(std::string_view text) const {
        return current().kind == TokenKind::punctuation && current().text == text;
    }
    bool skip_name(std::string_view text) {
        if (!is_name(text)) return false;
        take();
        return true;
    }
    bool skip_mark(std::string_view text) {
        if (!is_mark(text)) return false;
        take();
        return true;
    }
    [[noreturn]] void fail_unexpected(const std::string& expected) const {
        const Token& token = current();
        std::string found = "'" + token.text + "'";
        if (token.kind == TokenKind::end) found = token.text;
        if (token.kind == TokenKind::block_end || token.kind == TokenKind::output_end) found = "the end of the tag";
        fail_at(token.line, "expected " + expected + ", found " + found);
    }
    void expect_mark(std::string_view text) {
        if (!skip_mark(text)) fail_unexpected("'" + std::string(text) + "'");
    }
    std::string expect_name(const std::string& what) {
        if (current().kind != TokenKind::name) fail_unexpected(what);
        return take().text;
    }
    void expect(TokenKind kind, const std::string& what) {
        if (current().kind != kind) fail_unexpected(what);
        take();
    }

    static ExprRef make(ExprKind kind, int line, std::string text = "") {
        auto expr = std::make_unique<Expr>();
        expr->kind = kind;
        expr->line = line;
        expr->text = std::move(text);
        return expr;
    }
    static void deepen(Expr& parent, const ExprRef& child) {
        if (child == nullptr) return;
        parent.depth = std::max(parent.depth, child->depth + 1);
        if (parent.depth > kDepthMax) {
            fail_at(parent.line, "the expression has more than " + std::to_string(kDepthMax) + " steps in a row");
        }
    }
    static void add(const ExprRef& parent, ExprRef child) {
        deepen(*parent, child);
        parent->children.push_back(std::move(child));
    }

    // ---------------------------------------------------------------- statements
    // Statements up to one of the named tags, whose name is left as the current token (behind its block_begin).
    Body parse_body(std::initializer_list<std::string_view> ends) {
        const Level level(*this);
        Body body;
        while (current().kind != TokenKind::end) {
            const int line = current().line;
            if (current().kind == TokenKind::text) {
                Statement statement{};
                statement.kind = StatementKind::text;
                statement.line = line;
                statement.text = take().text;
                body.push_back(std::move(statement));
            } else if (current().kind == TokenKind::output_begin) {
                take();
                Statement statement{};
                statement.kind = StatementKind::output;
                statement.line = line;
                statement.value = parse_tuple(true);
                expect(TokenKind::output_end, "the end of the tag");
                body.push_back(std::move(statement));
            } else {
                take();  // block_begin: nothing else can stand here
                if (current().kind != TokenKind::name) fail_unexpected("the name of a statement");
                if (std::any_of(ends.begin(), ends.end(), [this](std::string_view end) { return is_name(end); })) {
                    return body;
                }
                body.push_back(parse_statement());
            }
        }
        if (ends.size() != 0) {
            std::string names;
            for (const std::string_view end : ends) {
                if (!names.empty()) names += " or ";
                names += "'" + std::string(end) + "'";
            }
            fail_unexpected(names);
        }
        return body;
    }
    void end_tag() { expect(TokenKind::block_end, "the end of the tag"); }

    Statement parse_statement() {
        Statement statement{};
        statement.line = current().line;
        const std::string name = take().text;
        if (name == "if") {
            parse_if(statement);
        } else if (name == "for") {
            parse_for(statement);
        } else if (name == "set") {
            parse_set(statement);
        } else if (name == "break" || name == "continue") {
            if (loops_ == 0) fail_at(statement.line, "'" + name + "' outside a loop");
            statement.kind = name == "break" ? StatementKind::break_loop : StatementKind::continue_loop;
        } else {
            const bool is_stray = name == "else" || name == "elif" || name.substr(0, 3) == "end";
            fail_at(statement.line,
                    is_stray ? "unexpected '" + name + "'" : "the statement '" + name + "' is not supported");
        }
        end_tag();
        return statement;
    }

    void parse_if(Statement& statement) {
        statement.kind = StatementKind::branch;
        while (true) {
            Branch branch;
            branch.condition = parse_tuple(false);
            end_tag();
            branch.body = parse_body({"elif", "else", "endif"});
            statement.branches.push_back(std::move(branch));
            if (!skip_name("elif")) break;
        }
        if (skip_name("else")) {
            end_tag();
            Branch branch;
            branch.body = parse_body({"endif"});
            statement.branches.push_back(std::move(branch));
        }
        take();  // endif
    }

    void parse_for(Statement& statement) {
        statement.kind = StatementKind::loop;
        const bool has_parenthesis = skip_mark("(");
        do {
            if (!statement.names.empty() && is_name("in")) break;
            statement.names.push_back(parse_target());
        } while (skip_mark(","));
        if (has_parenthesis) expect_mark(")");
        if (!skip_name("in")) fail_unexpected("'in'");
        statement.value = parse_tuple(false);
        if (skip_name("if")) statement.condition = parse_expression(true);
        if (is_name("recursive")) fail_at(current().line, "a recursive loop is not supported");
        end_tag();
        ++loops_;
        statement.body = parse_body({"else", "endfor"});
        --loops_;
        if (skip_name("else")) {
            end_tag();
            statement.otherwise = parse_body({"endfor"});
        }
        take();  // endfor
    }

    std::string parse_target() {
        const int line = current().line;
        std::string name = expect_name("a name to assign to");
        constexpr std::string_view kReserved[] = {"true", "false", "none", "True", "False", "None", "loop"};
        if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
            fail_at(line, "'" + name + "' cannot be assigned to");
        }
        return name;
    }

    void parse_set(Statement& statement) {
        statement.kind = StatementKind::set;
        statement.names.push_back(parse_target());
        if (skip_mark(".")) {
            statement.attribute = expect_name("the name of an attribute");
        } else {
            while (skip_mark(",")) statement.names.push_back(parse_target());
        }
        if (skip_mark("=")) {
            statement.value = parse_tuple(true);
            return;
        }
        if (is_mark("|")) fail_at(current().line, "a filter on a 'set' block is not supported");
        if (statement.names.size() > 1) fail_unexpected("'='");
        statement.kind = StatementKind::set_block;
        end_tag();
        statement.body = parse_body({"endset"});
        take();  // endset
    }

    // ---------------------------------------------------------------- expressions, loosest binding first
    bool is_tuple_end() const {
        return current().kind == TokenKind::block_end || current().kind == TokenKind::output_end || is_mark(")") ||
               is_name("recursive");
    }

    // One expression, or several with commas between, which make a tuple.
    ExprRef parse_tuple(bool with_conditional) {
        const int line = current().line;
        ExprRef first = parse_expression(with_conditional);
        if (!is_mark(",")) return first;
        ExprRef tuple = make(ExprKind::tuple, line);
        add(tuple, std::move(first));
        while (skip_mark(",")) {
            if (is_tuple_end()) break;
            add(tuple, parse_expression(with_conditional));
        }
        return tuple;
    }

    ExprRef parse_expression(bool with_conditional) {
        const Level level(*this);
        ExprRef value = parse_or();
        while (with_conditional && is_name("if")) {
            ExprRef conditional = make(ExprKind::conditional, take().line);
            add(conditional, std::move(value));
            add(conditional, parse_or());
            add(conditional, skip_name("else") ? parse_expression(true) : nullptr);
            value = std::move(conditional);
        }
        return value;
    }

    ExprRef parse_or() {
        ExprRef left = parse_and();
        while (is_name("or")) {
            ExprRef both = make(ExprKind::logical_or, take().line);
            add(both, std::move(left));
            add(both, parse_and());
            left = std::move(both);
        }
        return left;
    }

    ExprRef parse_and() {
        ExprRef left = parse_not();
        while (is_name("and")) {
            ExprRef both = make(ExprKind::logical_and, take().line);
            add(both, std::move(left));
            add(both, parse_not());
            left = std::move(both);
        }
        return left;
    }

    ExprRef parse_not() {
        if (!is_name("not")) return parse_compare();
        const Level level(*this);
        ExprRef inverse = make(ExprKind::logical_not, take().line);
        add(inverse, parse_not());
        return inverse;
    }

    std::string parse_comparison() {
        constexpr std::string_view kMarks[] = {"==", "!=", "<", "<=", ">", ">="};
        if (current().kind == TokenKind::punctuation &&
            std::find(std::begin(kMarks), std::end(kMarks), current().text) != std::end(kMarks)) {
            return take().text;
        }
        if (skip_name("in")) return "in";
        if (is_name("not") && look(1).kind == TokenKind::name && look(1).text == "in") {
            take();
            take();
            return "not in";
        }
        return "";
    }

    ExprRef parse_compare() {
        ExprRef first = parse_sum();
        const int line = current().line;
        std::string comparison = parse_comparison();
        if (comparison.empty()) return first;
        ExprRef compare = make(ExprKind::compare, line);
        add(compare, std::move(first));
        for (; !comparison.empty(); comparison = parse_comparison()) {
            compare->operators.push_back(comparison);
            add(compare, parse_sum());
        }
        return compare;
    }

    ExprRef parse_sum() {
        ExprRef left = parse_concat();
        while (is_mark("+") || is_mark("-")) {
            const Token mark = take();
            ExprRef sum = make(ExprKind::arithmetic, mark.line, mark.text);
            add(sum, std::move(left));
            add(sum, parse_concat());
            left = std::move(sum);
        }
        return left;
    }

    ExprRef parse_concat() {
        ExprRef first = parse_product();
        if (!is_mark("~")) return first;
        ExprRef concat = make(ExprKind::concat, current().line);
        add(concat, std::move(first));
        while (skip_mark("~")) add(concat, parse_product());
        return concat;
    }

    ExprRef parse_product() {
        ExprRef left = parse_unary(true);
        while (is_mark("*") || is_mark("/") || is_mark("//") || is_mark("%") || is_mark("**")) {
            const Token mark = take();
            if (mark.text == "**") fail_at(mark.line, "the operator '**' is not supported");
            ExprRef product = make(ExprKind::arithmetic, mark.line, mark.text);
            add(product, std::move(left));
            add(product, parse_unary(true));
            left = std::move(product);
        }
        return left;
    }

    ExprRef parse_unary(bool with_filter) {
        ExprRef value;
        if (is_mark("-") || is_mark("+")) {
            const Level level(*this);
            const Token mark = take();
            value = make(mark.text == "-" ? ExprKind::negate : ExprKind::plus, mark.line);
            add(value, parse_unary(false));
        } else {
            value = parse_primary();
        }
        value = parse_postfix(std::move(value));
        return with_filter ? parse_filters(std::move(value)) : std::move(value);
    }

    ExprRef parse_primary() {
        const Token token = current();
        if (token.kind == TokenKind::name) {
            take();
            ExprRef literal = make(ExprKind::literal, token.line);
            if (token.text == "true" || token.text == "True") {
                literal->value = true;
            } else if (token.text == "false" || token.text == "False") {
                literal->value = false;
            } else if (token.text == "none" || token.text == "None") {
                literal->value = None{};
            } else {
                return make(ExprKind::name, token.line, token.text);
            }
            return literal;
        }
        if (token.kind == TokenKind::string) {
            std::string text;
            while (current().kind == TokenKind::string) text += take().text;
            ExprRef literal = make(ExprKind::literal, token.line);
            literal->value = std::make_shared<const String>(String{std::move(text), Claim()});
            return literal;
        }
        if (token.kind == TokenKind::integer || token.kind == TokenKind::real) {
            take();
            ExprRef literal = make(ExprKind::literal, token.line);
            if (token.kind == TokenKind::real) {
                literal->value = token.real;
            } else {
                literal->value = token.integer;
            }
            return literal;
        }
        if (skip_mark("(")) {
            ExprRef inner = is_mark(")") ? make(ExprKind::tuple, token.line) : parse_tuple(true);
            expect_mark(")");
            return inner;
        }
        if (skip_mark("[")) {
            ExprRef list = make(ExprKind::list, token.line);
            while (!is_mark("]")) {
                add(list, parse_expression(true));
                if (!skip_mark(",")) break;
            }
            expect_mark("]");
            return list;
        }
        if (skip_mark("{")) {
            ExprRef dict = make(ExprKind::dict, token.line);
            while (!is_mark("}")) {
                add(dict, parse_expression(true));
                expect_mark(":");
                add(dict, parse_expression(true));
                if (!skip_mark(",")) break;
            }
            expect_mark("}");
            return dict;
        }
        fail_unexpected("an expression");
    }

    ExprRef parse_postfix(ExprRef value) {
        while (true) {
            if (is_mark(".")) {
                const int line = take().line;
                if (current().kind == TokenKind::integer) {
                    ExprRef item = make(ExprKind::item, line);
                    add(item, std::move(value));
                    add(item, parse_primary());
                    value = std::move(item);
                } else {
                    ExprRef attribute = make(ExprKind::attribute, line, expect_name("the name of an attribute"));
                    add(attribute, std::move(value));
                    value = std::move(attribute);
                }
            } else if (is_mark("[")) {
                value = parse_subscript(std::move(value));
            } else if (is_mark("(")) {
                value = parse_call(std::move(value));
            } else {
                return value;
            }
        }
    }

    ExprRef parse_subscript(ExprRef value) {
        const int line = take().line;
        const auto bound = [this]() -> ExprRef {
            return is_mark(":") || is_mark("]") ? nullptr : parse_expression(true);
        };
        ExprRef first = bound();
        if (first != nullptr && !is_mark(":")) {
            if (is_mark(",")) fail_at(current().line, "a subscript with a comma is not supported");
            expect_mark("]");
            ExprRef item = make(ExprKind::item, line);
            add(item, std::move(value));
            add(item, std::move(first));
            return item;
        }
        ExprRef slice = make(ExprKind::slice, line);
        add(slice, std::move(value));
        add(slice, std::move(first));
        expect_mark(":");
        add(slice, bound());
        add(slice, skip_mark(":") ? bound() : nullptr);
        expect_mark("]");
        return slice;
    }

    void parse_arguments(const ExprRef& call) {
        expect_mark("(");
        while (!is_mark(")")) {
            if (is_mark("*") || is_mark("**")) fail_at(current().line, "unpacked arguments are not supported");
            const bool is_named = current().kind == TokenKind::name && look(1).kind == TokenKind::punctuation &&
                                  look(1).text == "=";
            if (is_named) {
                std::string name = take().text;
                take();
                ExprRef value = parse_expression(true);
                deepen(*call, value);
                call->named.emplace_back(std::move(name), std::move(value));
            } else {
                if (!call->named.empty()) fail_unexpected("a named argument");
                ExprRef value = parse_expression(true);
                deepen(*call, value);
                call->arguments.push_back(std::move(value));
            }
            if (!skip_mark(",")) break;
        }
        expect_mark(")");
    }

    ExprRef parse_call(ExprRef callee) {
        ExprRef call = make(ExprKind::call, current().line);
        add(call, std::move(callee));
        parse_arguments(call);
        return call;
    }

    ExprRef parse_filters(ExprRef value) {
        while (true) {
            if (is_mark("|")) {
                const int line = take().line;
                ExprRef filter = make(ExprKind::filter, line, expect_name("the name of a filter"));
                if (!is_filter(filter->text)) fail_at(line, "the filter '" + filter->text + "' is not supported");
                add(filter, std::move(value));
                if (is_mark("(")) parse_arguments(filter);
                value = std::move(filter);
            } else if (is_name("is")) {
                value = parse_test(std::move(value));
            } else if (is_mark("(")) {
                value = parse_call(std::move(value));
            } else {
                return value;
            }
        }
    }

    ExprRef parse_test(ExprRef value) {
        const int line = take().line;
        const bool is_inverse = skip_name("not");
        ExprRef test = make(ExprKind::test, line, expect_name("the name of a test"));
        if (!is_test(test->text)) fail_at(line, "the test '" + test->text + "' is not supported");
        add(test, std::move(value));
        const TokenKind kind = current().kind;
        const bool begins_argument =
            kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real || is_mark("[") ||
            is_mark("{") ||
            (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"));
        if (is_mark("(")) {
            parse_arguments(test);
        } else if (begins_argument) {
            if (is_name("is")) fail_at(current().line, "two tests in a row are not supported");
            ExprRef argument = parse_postfix(parse_primary());
            deepen(*test, argument);
            test->arguments.push_back(std::move(argument));
        }
        if (!is_inverse) return test;
        ExprRef inverse = make(ExprKind::logical_not, line);
        add(inverse, std::move(test));
        return inverse;
    }

    std::vector<Token> tokens_;
    size_t at_ = 0;
    int nesting_ = 0;
    int loops_ = 0;
};

}  // namespace

Body parse(std::string_view source) {
    if (source.size() > kSourceBytesMax) throw std::runtime_error("the template is longer than 256 KiB");
    return Parser(source).run();
}

}  // namespace assay::jinja
