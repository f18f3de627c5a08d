// The smallest test harness that does the job: counts, prints what failed, and gives the exit code.
#pragma once

#include <cstdio>
#include <exception>
#include <sstream>
#include <string>

namespace check {

inline int n_passed = 0;
inline int n_failed = 0;

inline void report(bool holds, const char* file, int line, const std::string& text) {
    if (holds) {
        ++n_passed;
        return;
    }
    ++n_failed;
    std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, text.c_str());
}

template <typename A, typename B>
void report_equal(const A& found, const B& expected, const char* file, int line, const std::string& text) {
    std::ostringstream message;
    if (!(found == expected)) message << text << "\n  found    " << found << "\n  expected " << expected;
    report(found == expected, file, line, message.str());
}

// The text of the exception that `action` throws; empty when it throws none.
template <typename Action>
std::string error_of(Action action) {
    try {
        action();
    } catch (const std::exception& error) {
        return error.what();
    }
    return "";
}

inline int finish() {
    std::printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed == 0 && n_passed > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition) check::report((condition), __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(found, expected) check::report_equal((found), (expected), __FILE__, __LINE__, #found)
// The action must throw, and the text must hold `part`.
#define CHECK_ERROR(action, part)                                                                        \
    do {                                                                                                 \
        const std::string found_error = check::error_of([&] { (void)(action); });                        \
        const std::string expected_error = (part);                                                       \
        check::report(!found_error.empty() && found_error.find(expected_error) != std::string::npos, __FILE__, __LINE__, \
                      #action " gives the error '" + found_error + "', expected '" + expected_error + "'"); \
    } while (false)
