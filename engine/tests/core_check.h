// Checks for the tests of the engine core: each failure prints where and what, the exit code counts them.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace core {

inline int n_checks = 0;
inline int n_failures = 0;

inline void check(bool holds, const char* file, int line, const std::string& text) {
    ++n_checks;
    if (holds) return;
    ++n_failures;
    std::fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
}

template <class A, class B>
std::string both(const char* text, const A& found, const B& needed) {
    std::ostringstream out;
    out << text << ": found " << found << ", needed " << needed;
    return out.str();
}

inline int finish(const char* name) {
    std::printf("%s: %d checks, %d failures\n", name, n_checks, n_failures);
    return n_failures == 0 && n_checks > 0 ? 0 : 1;
}

}  // namespace core

#define CHECK(condition) core::check(static_cast<bool>(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(found, needed)                                                                                   \
    do {                                                                                                             \
        const auto& found_value = (found);                                                                           \
        const auto& needed_value = (needed);                                                                         \
        core::check(found_value == needed_value, __FILE__, __LINE__, core::both(#found, found_value, needed_value)); \
    } while (false)
#define CHECK_BELOW(found, limit)                                                                                 \
    do {                                                                                                          \
        const double found_value = (found);                                                                       \
        const double limit_value = (limit);                                                                       \
        core::check(found_value < limit_value, __FILE__, __LINE__, core::both(#found, found_value, limit_value)); \
    } while (false)
#define CHECK_CONTAINS(text, part)                                                        \
    do {                                                                                  \
        const std::string text_value = (text);                                            \
        const std::string part_value = (part);                                            \
        core::check(text_value.find(part_value) != std::string::npos, __FILE__, __LINE__, \
                    core::both(#text, text_value, part_value));                           \
    } while (false)
