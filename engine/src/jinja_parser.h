// The tree of a template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja_value.h"

namespace assay::jinja {

enum class ExprKind : uint8_t {
    literal,      // value
    name,         // text
    attribute,    // children[0] . text
    item,         // children[0] [ children[1] ]
    slice,        // children[0] [ children[1] : children[2] : children[3] ], the last three may be null
    call,         // children[0] ( arguments )
    filter,       // children[0] | text ( arguments )
    test,         // children[0] is text ( arguments )
    list,         // children
    tuple,        // children
    dict,         // children: key, value, key, value, ...
    negate,       // - children[0]
    plus,         // + children[0]
    logical_not,  // not children[0]
    logical_and,  // two children
    logical_or,   // two children
    arithmetic,   // children[0] text children[1]
    concat,       // children joined as text
    compare,      // children[0] operators[0] children[1] operators[1] ...
    conditional,  // children[0] if children[1] else children[2], the last may be null
};

struct Expr;
using ExprRef = std::unique_ptr<Expr>;

struct Expr {
    ExprKind kind;
    int line;
    int depth = 1;  // longest way down; bounds the recursion of whoever walks the tree
    std::string text;
    Value value;
    std::vector<ExprRef> children;
    std::vector<std::string> operators;
    std::vector<ExprRef> arguments;
    std::vector<std::pair<std::string, ExprRef>> named;
};

enum class StatementKind : uint8_t { text, output, branch, loop, set, set_block, break_loop, continue_loop };

struct Statement;
using Body = std::vector<Statement>;

struct Branch {
    ExprRef condition;  // null: else
    Body body;
};

struct Statement {
    StatementKind kind;
    int line;
    std::string text;                 // text: itself
    std::vector<std::string> names;   // targets of loop and set
    std::string attribute;            // set: the attribute of the namespace names[0], or empty
    ExprRef value;                    // output, set: the value; loop: what is iterated over
    ExprRef condition;                // loop: filter, may be null
    std::vector<Branch> branches;     // branch
    Body body;                        // loop, set_block
    Body otherwise;                   // loop: when there was nothing to visit
};

// Throws std::runtime_error ("line 3: the filter 'sort' is not supported").
Body parse(std::string_view source);

}  // namespace assay::jinja
